// Calls a second and their p99, by method, as /metrics has them: of all workers of this gateway.

import { getText } from "./api.js";
import { bytes, count, milliseconds, rate } from "./format.js";
import { CallHistory, countsOf, parse, total } from "./metrics.js";
import { Plot } from "./plot.js";
import { Empty, html, Loading, Problem, Stale, usePolled } from "./ui.js";

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
  if (!value)
    return html`<h1>Calls</h1>${error ? html`<${Problem} error=${error} again=${again} />` : html`<${Loading} what="the metrics" />`}`;
  const methods = history
    .methods()
    .sort((one, other) => (other.rates.at(-1) ?? 0) - (one.rates.at(-1) ?? 0) || other.calls - one.calls);
  const figures = [
    [
      "Calls a second",
      rate(history.rounds.length > 1 ? methods.reduce((sum, each) => sum + (each.rates.at(-1) ?? 0), 0) : null),
    ],
    ["Streams", count(total(value, "tablegate_streams"))],
    ["Connections", count(total(value, "tablegate_connections"))],
    ["Refused by a limit", count(total(value, "tablegate_refused_calls_total"))],
    ["Held for clients", bytes(total(value, "tablegate_process_kept_bytes"))],
    ["Memory", bytes(total(value, "tablegate_process_resident_memory_bytes"))],
  ];
  return html`<h1>Calls</h1>
    <${Stale} error=${error} atMs=${atMs} now=${now} again=${again} />
    <dl class="figures">${figures.map(([name, figure]) => html`<div key=${name}><dt>${name}</dt><dd>${figure}</dd></div>`)}</dl>
    ${methods.length ? html`<${Methods} methods=${methods} />` : html`<${Empty} title="No calls yet">Nobody has called this gateway since it was started. Ask it: <code>tablegate tables</code>.<//>`}`;
}

function Methods({ methods }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Methods">
    <table class="list cards">
      <thead><tr><th scope="col">Method</th><th scope="col">Calls a second</th><th scope="col">p99</th><th scope="col" class="number">Failing a second</th><th scope="col" class="number">In all</th></tr></thead>
      <tbody>
        ${methods.map((each) => {
          const [service, name] = each.method.replace(/^\//, "").split("/");
          return html`<tr key=${each.method}>
            <th scope="row">${name}<span class="about">${service}</span></th>
            <td data-label="Calls a second" class="wide"><span class="figure">${rate(each.rates.at(-1))}</span><${Plot} values=${each.rates} label=${`calls of ${name} a second, of late`} /></td>
            <td data-label="p99" class="wide"><span class="figure">${milliseconds(each.p99s.at(-1))}</span><${Plot} values=${each.p99s} label=${`p99 of ${name}, of late`} /></td>
            <td data-label="Failing a second" class=${`number ${each.failing ? "old" : ""}`}>${rate(each.failing)}</td>
            <td data-label="In all" class="number">${count(each.calls)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </div>
  <p class="hint">Calls that have ended, at all workers of this gateway; a stream counts when it ends. The p99 is of the last ten seconds.</p>`;
}
