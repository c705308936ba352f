// Calls a second and their p99, by method, as /metrics has them: of all workers of this gateway. Below, the streams.

import { getText } from "./api.js";
import { bytes, count, milliseconds, rate } from "./format.js";
import { CallHistory, countsOf, parse, total } from "./metrics.js";
import { Plot } from "./plot.js";
import { Subscribers } from "./subscribers.js";
import { Empty, html, List, Loading, Problem, Stale, usePolled } from "./ui.js";

const EVERY_MS = 2_000;
const history = new CallHistory(); // kept while one goes from screen to screen

export function Calls({ now }) {
  const { value, error, atMs, again } = usePolled(
    async (signal) => {
      const samples = parse(await getText("metrics", signal));
      history.add(countsOf(samples), Date.now());
      return samples;
    },
    EVERY_MS,
    [],
  );
  if (!value) {
    const shown = error ? html`<${Problem} error=${error} again=${again} />` : html`<${Loading} what="the metrics" />`;
    return html`<h1>Calls</h1>
      ${shown} ${error?.kind === "refused" && html`<${Subscribers} now=${now} />`}`;
  }
  const methods = history
    .methods()
    .sort((one, other) => newest(other.rates) - newest(one.rates) || other.calls - one.calls);
  return html`<h1>Calls</h1>
    <${Stale} ...${{ error, atMs, now, again }} />
    <${Figures} samples=${value} methods=${methods} />
    ${methods.length ? html`<${Methods} methods=${methods} />` : html`<${NoCalls} />`}
    <${Subscribers} now=${now} />`;
}

function newest(values) {
  return values.at(-1) ?? 0;
}

function NoCalls() {
  return html`<${Empty} title="No calls yet">
    Nobody has called this gateway since it was started. Ask it: <code>tablegate tables</code>.
  <//>`;
}

function Figures({ samples, methods }) {
  const calls =
    methods.length && methods[0].rates.length ? methods.reduce((sum, each) => sum + newest(each.rates), 0) : null;
  const behind = total(samples, "tablegate_streams_behind");
  const streams = count(total(samples, "tablegate_streams"));
  const figures = [
    ["Calls a second", rate(calls)],
    ["Streams", behind ? html`${streams}, <span class="old">${count(behind)} behind</span>` : streams],
    ["Connections", count(total(samples, "tablegate_connections"))],
    ["Refused by a limit", count(total(samples, "tablegate_refused_calls_total"))],
    ["Held for clients", bytes(total(samples, "tablegate_process_kept_bytes"))],
    ["Memory", bytes(total(samples, "tablegate_process_resident_memory_bytes"))],
  ];
  return html`<dl class="figures">
    ${figures.map(([name, figure]) => html`<div key=${name}><dt>${name}</dt><dd>${figure}</dd></div>`)}
  </dl>`;
}

const HEADS = [["Method"], ["Calls a second"], ["p99"], ["Failing a second", "number"], ["In all", "number"]];

function Methods({ methods }) {
  return html`<${List} label="Methods" heads=${HEADS}>
      ${methods.map((each) => html`<${Method} key=${each.method} ...${each} />`)}
    <//>
    <p class="hint">
      Calls that have ended, at all workers of this gateway; a stream counts when it ends. The p99 is of the last ten
      seconds.
    </p>`;
}

function Method({ method, rates, p99s, failing, calls }) {
  const [service, name] = method.replace(/^\//, "").split("/");
  return html`<tr>
    <th scope="row">${name}<span class="about">${service}</span></th>
    <td data-label="Calls a second" class="wide">
      <span class="figure">${rate(rates.at(-1))}</span>
      <${Plot} values=${rates} label=${`calls of ${name} a second, of late`} />
    </td>
    <td data-label="p99" class="wide">
      <span class="figure">${milliseconds(p99s.at(-1))}</span>
      <${Plot} values=${p99s} label=${`p99 of ${name}, of late`} />
    </td>
    <td data-label="Failing a second" class=${`number ${failing ? "old" : ""}`}>${rate(failing)}</td>
    <td data-label="In all" class="number">${count(calls)}</td>
  </tr>`;
}
