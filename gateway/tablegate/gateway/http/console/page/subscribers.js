// The streams of subscribers at this gateway, and how far behind it they are: counted while somebody looks.

import { unary } from "./api.js";
import { age, count, POINTS } from "./format.js";
import { Plot } from "./plot.js";
import { GATEWAY } from "./status.js";
import { Empty, html, List, Loading, Problem, Stale, usePolled } from "./ui.js";

const EVERY_MS = 2_000;
const OLD_S = 5; // a stream is sent what is new in milliseconds: what waits longer has a reason
const lags = new Map(); // method → seconds of the stream that is furthest behind, the newest last

async function ask(signal) {
  const { subscriptions = [] } = await unary(`${GATEWAY}/GetStatus`, { withSubscriptions: true }, signal);
  const methods = new Set(subscriptions.map((each) => each.method));
  for (const method of lags.keys()) if (!methods.has(method)) lags.delete(method);
  for (const each of subscriptions) {
    const { lagSeconds = 0 } = worst(each);
    lags.set(each.method, [...(lags.get(each.method) ?? []), lagSeconds].slice(-POINTS));
  }
  return subscriptions;
}

// The stream that is furthest behind; one without a lag where none is.
function worst({ furthest = [] }) {
  return furthest[0] ?? {};
}

export function Subscribers({ now }) {
  const { value, error, atMs, again } = usePolled(ask, EVERY_MS, []);
  const waiting = error
    ? html`<${Problem} error=${error} again=${again} />`
    : html`<${Loading} what="the subscribers" />`;
  return html`<h2 class="next">Subscribers</h2>
    ${value ? html`<${Stale} ...${{ error, atMs, now, again }} /><${Found} subscriptions=${value} />` : waiting}`;
}

const HEADS = [["Method"], ["Streams", "number"], ["Furthest behind"], ["Records", "number"], ["Behind", "number"], ["Filling", "number"]];

function Found({ subscriptions }) {
  if (!subscriptions.length)
    return html`<${Empty} title="Nobody is subscribed">
      Streams of Subscribe appear here: <code>tablegate subscribe</code> opens one.
    <//>`;
  const behind = subscriptions.flatMap((each) => (each.furthest ?? []).map((stream) => ({ ...stream, of: each.method })));
  return html`<${List} label="Subscribers" heads=${HEADS}>
      ${subscriptions.map((each) => html`<${Method} key=${each.method} ...${each} />`)}
    <//>
    <p class="hint">
      Furthest behind: how old the oldest change is that a stream has not been sent, and how many records of the changelog
      there are from it on. It counts from what this gateway has applied: the age of its tables comes on top.
    </p>
    ${behind.length > 0 && html`<${Behind} streams=${behind} />`}`;
}

function Method({ method, streams = 0, gatewayStreams = 0, filling = 0, behind = 0, furthest }) {
  const [service, name] = method.split("/");
  const { lagSeconds = 0, lagRecords = 0 } = worst({ furthest });
  const label = `how far behind the slowest stream of ${name} is, of late`;
  return html`<tr>
    <th scope="row">${name}<span class="about">${service}</span></th>
    <td data-label="Streams" class="number">
      ${count(streams)}${gatewayStreams > 0 && html`<span class="about">${count(gatewayStreams)} of gateways</span>`}
    </td>
    <td data-label="Furthest behind" class="wide">
      <span class=${`figure ${lagSeconds > OLD_S ? "old" : ""}`}>${lagSeconds ? age(lagSeconds) : "0 s"}</span>
      <${Plot} values=${lags.get(method) ?? []} label=${label} />
    </td>
    <td data-label="Records" class="number">${count(lagRecords)}</td>
    <td data-label="Behind" class="number">${count(behind)}</td>
    <td data-label="Filling" class="number">${count(filling)}</td>
  </tr>`;
}

function Behind({ streams }) {
  const line = (stream, place) => {
    const { of, lagSeconds = 0, lagRecords = 0, openSeconds, filling, forGateway } = stream;
    const facts = [
      lagSeconds > 0 && `${age(lagSeconds)} and ${count(lagRecords)} records behind`,
      filling && "still getting the first rows",
      forGateway && "of another gateway",
      `open for ${age(openSeconds)}`,
    ];
    return html`<li key=${place}><strong>${of.split("/")[1]}</strong> ${facts.filter(Boolean).join(", ")}</li>`;
  };
  return html`<div class="panel after">
    <h3>Streams that are behind</h3>
    <ul class="plain">
      ${streams.map(line)}
    </ul>
    <p class="hint">
      A stream is behind where its client reads too slowly, or the line to it is slow. What it has not read is kept in the
      history: one that stays behind for longer than that goes back begins with a new snapshot.
    </p>
  </div>`;
}
