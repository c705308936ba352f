// The tables of this gateway: state, rows, freshness, lag, rate, and records that were set aside.

import { unary } from "./api.js";
import { age, count, NONE, rate, short } from "./format.js";
import { Plot } from "./plot.js";
import { markerAge, ratesOf, snapshotsOf, stateOf, summary } from "./status.js";
import { Empty, html, List, usePolled } from "./ui.js";

const COUNT_EVERY_MS = 15_000;
const COUNT_PAUSES = 19; // a gateway reads all rows for it: a twentieth of the time is enough
const SHOWN_TOPICS = 3; // a pattern may match hundreds
const SHOWN_REASONS = 3; // the status has them all, of snapshot files that were of no use, too
const OLD_S = 30; // a marker of progress comes every few seconds: what is older than this has a reason

const HEADS = [
  ["Table"],
  ["State"],
  ["Rows", "number"],
  ["Age", "number"],
  ["Lag", "number"],
  ["Records applied per second"],
  ["Set aside", "number"],
  ["Job's marker", "number"],
  ["Partitions here"],
];

// `serverNow`: the time by the clock of the gateway, as far as its status tells.
export function Tables({ status, contracts, serverNow }) {
  const tables = status.tables ?? [];
  const counts = useCounts(contracts);
  if (!tables.length) return html`<${NoTables} />`;
  return html`<h1>Tables</h1>
    <${List} label="Tables" heads=${HEADS}>
      ${tables.map((table) => {
        const about = contracts?.tables.find((each) => each.name === table.table)?.about;
        const rows = counts[table.table];
        return html`<${Line} key=${table.table} ...${{ table, rows, about, serverNow, snapshots: status.snapshots }} />`;
      })}
    <//>
    <p class="hint">
      Rows: of tables whose contract has a Count. Age: how old an answer may be, as all that was committed to
      the changelog longer ago is in it. Set aside: records that could not be applied, since the replicator began. Job's marker: how old the job's newest
      word is of a batch that it has finished.
    </p>`;
}

export function NoTables() {
  return html`<${Empty} title="No tables yet">
    The gateway has no status of any table: its replicator has just begun, or is away. Its log says which.
  <//>`;
}

function Line({ table, rows, about, serverNow, snapshots }) {
  const state = stateOf(table);
  const { lag, age: seconds, rate: perSecond, setAside, here, of } = summary(table, serverNow);
  const name = encodeURIComponent(table.table);
  const why = table.fault || table.problem || table.repairProblem;
  const restoring = `${short(table.restoreRowsPerSecond)} rows/s, ${age(table.restoreSecondsLeft)} left`;
  const marker = markerText(table, serverNow);
  const from = sourcesOf(table);
  const reasons = reasonsOf(table);
  const { files, useless } = snapshotsOf(table, snapshots, serverNow);
  const mapLabel = `${here} of ${of} partitions of ${table.table}: see the map`;
  return html`<tr>
    <th scope="row">
      <a href=${`#/rows/${name}`}>${table.table}</a>
      ${about && html`<span class="about">${about}</span>`}
      ${from && html`<span class="about">${from}</span>`}
      ${reasons.map((reason) => html`<span class="about">${reason}</span>`)}
      ${files && html`<span class="about">${files}</span>`}
      ${why && html`<span class="why">${why}</span>`}
      ${useless.slice(0, SHOWN_REASONS).map((text) => html`<span class="why">${text}</span>`)}
    </th>
    <td data-label="State">
      <span class=${`pill ${state.tone}`}>${state.name}</span>
      ${table.restoreSecondsLeft > 0 && html`<span class="about">${restoring}</span>`}
    </td>
    <td data-label="Rows" class="number">${count(rows)}</td>
    <td data-label="Age" class=${`number ${seconds > OLD_S ? "old" : ""}`}>${age(seconds)}</td>
    <td data-label="Lag" class="number">${count(lag)}</td>
    <td data-label="Applied per second" class="wide">
      <span class="figure">${rate(perSecond)}</span>
      <${Plot} values=${ratesOf(table.table)} label=${`records of ${table.table} applied per second, of late`} />
    </td>
    <td data-label="Set aside" class=${`number ${setAside ? "old" : ""}`}>${count(setAside)}</td>
    <td data-label="Job's marker" class="number">
      ${
        table.manifest
          ? html`<a href=${`#/job/${name}`} aria-label=${`${marker}: the job of ${table.table}`}>${marker}</a>`
          : NONE
      }
    </td>
    <td data-label="Partitions here">
      ${of ? html`<a href=${`#/map/${name}`} aria-label=${mapLabel}>${here} of ${of}</a>` : NONE}
    </td>
  </tr>`;
}

// Where the rows come from: the topic itself, or those that the job reads.
function sourcesOf(table) {
  const topics = (table.manifest?.sources ?? []).map((source) => source.topic);
  if (!topics.length) return "";
  const shown = topics.slice(0, SHOWN_TOPICS).join(", ");
  return `from ${shown}${topics.length > SHOWN_TOPICS ? ` and ${topics.length - SHOWN_TOPICS} more topics` : ""}`;
}

// Why records were set aside: the most frequent reasons.
function reasonsOf(table) {
  const reasons = [...(table.poison ?? [])].sort((one, other) => Number(other.count) - Number(one.count));
  return reasons.slice(0, SHOWN_REASONS).map((each) => `${count(each.count)} set aside: ${each.reason}`);
}

function markerText(table, serverNow) {
  if (table.manifest?.foreign) return "no job";
  const seconds = markerAge(table, serverNow);
  return seconds == null ? "not seen" : age(seconds);
}

// How many rows each table has, of those with a Count that needs nothing; by table. The contracts are read again every
// minute: a count that goes on does not begin anew for that, only where they say something else.
function useCounts(contracts) {
  const counts = [];
  for (const table of contracts?.tables ?? []) {
    const query = table.queries.find((each) => each.kind === "count" && !each.params.some((param) => param.required));
    if (query) counts.push({ table: table.name, path: query.path, field: query.count });
  }
  const load = async (signal) => {
    const found = {};
    for (const { table, path, field } of counts) {
      try {
        found[table] = Number((await unary(path, {}, signal))[field] ?? 0);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        // This one is not known; the others are.
      }
    }
    return found;
  };
  return usePolled(load, COUNT_EVERY_MS, [JSON.stringify(counts)], null, COUNT_PAUSES).value ?? {};
}
