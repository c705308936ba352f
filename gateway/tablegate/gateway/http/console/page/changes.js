// The changes of one row: those that a gateway's history has, and each new one as the row's Subscribe tells of it.

import { useRef } from "preact/hooks";
import { unary } from "./api.js";
import { age, cell, count, moment } from "./format.js";
import { GATEWAY } from "./status.js";
import { html, Loading, Problem, sentence, Stale, usePolled } from "./ui.js";

const CHANGES_MAX = 100; // of one answer, and shown
const EVERY_MS = 4_000; // where no Subscribe says that there is something new

// The history of the row of a Get. `news`: it is asked again when this changes, from where the last answer ended.
export function useHistory(table, get, request, news) {
  const known = useRef(null);
  const json = JSON.stringify(request);
  const load = async (signal) => {
    const ask = (startOffset) =>
      unary(`${GATEWAY}/GetHistory`, { method: get.path, json, startOffset, limit: CHANGES_MAX }, signal);
    let answer = await ask(known.current?.nextOffset ?? "0");
    // Offsets are those of a partition and generation, and each gateway's history goes back as far as it does.
    if (known.current && !goesOn(known.current, answer)) {
      known.current = null;
      answer = await ask("0");
    }
    known.current = joined(known.current, answer, table);
    return known.current;
  };
  return usePolled(load, EVERY_MS, [get.path, json], news);
}

function goesOn(before, answer) {
  const isSame = ["generation", "partition", "gatewayId"].every((name) => before[name] === answer[name]);
  return isSame && Number(answer.nextOffset ?? 0) >= Number(before.nextOffset);
}

function joined(before, answer, table) {
  const older = before?.changes ?? [];
  const ids = new Set(older.map((change) => change.id));
  // What expired at the next offset comes again when that is asked for.
  const newer = (answer.changes ?? []).map((change) => shown(change, table)).filter((change) => !ids.has(change.id));
  const changes = [...newer, ...older];
  return {
    ...answer,
    nextOffset: answer.nextOffset ?? "0",
    truncated: Boolean(answer.truncated || before?.truncated || changes.length > CHANGES_MAX),
    changes: changes.slice(0, CHANGES_MAX),
  };
}

function shown(change, table) {
  const { offset = "0", generation, sequence = "0" } = change;
  const [row, before] = [change.row, change.before].map((content) => content && JSON.parse(content.json));
  const fields = row && before ? changedFields(table, before, row) : [];
  const what = !row ? "deleted" : !before ? "added" : fields.length ? "changed" : "written again, the same";
  const version = `offset ${count(offset)}, version ${generation}/${count(sequence)}`;
  const id = `${offset} ${generation} ${sequence} ${what}`;
  return { id, atMs: Date.parse(change.time), what, fields, before, row, version };
}

// The columns in which two rows are not the same.
export function changedFields(table, before, row) {
  return table.columns.filter((column) => JSON.stringify(row[column.name]) !== JSON.stringify(before[column.name]));
}

// `seen`: what has come since the page was opened, for where the history is not to be had.
export function Changes({ history, seen, isLive, now }) {
  const { value, error, atMs, again } = history;
  const shown = value
    ? html`<${Stale} ...${{ error, atMs, now, again }} />
        <${Reach} ...${{ value, now }} />
        <${Log} list=${value.changes} none="No change of this row is in the history." />`
    : error
      ? html`<${NoHistory} ...${{ error, again }} />
          <h3>Since you opened this</h3>
          ${!isLive && html`<p class="dim">The contract has no Subscribe that takes a key: nothing appears here.</p>`}
          <${Log} list=${seen} none="None yet." />`
      : html`<${Loading} what="the history" />`;
  return html`<div class="panel">
    <h2>Changes</h2>
    ${shown}
  </div>`;
}

function NoHistory({ error, again }) {
  if (error.kind !== "away" && error.kind !== "absent") return html`<${Problem} ...${{ error, again }} />`;
  const advice =
    error.kind === "away"
      ? "The history is kept by who has the partition; it is asked for again by itself."
      : "This port does not give rows, or the gateway is of an earlier version.";
  return html`<div class="notice" role="status">
    <p class="title">No history ${error.kind === "away" ? "now" : "here"}</p>
    <p>${sentence(error.message)} ${advice}</p>
  </div>`;
}

// How far back the history goes, which is not as far as the row does.
function Reach({ value, now }) {
  const { partition = 0, historyStart = "0", historyStartTime, nextOffset, truncated, gatewayId } = value;
  const back = Date.parse(historyStartTime);
  const whose = `The history of partition ${partition}${gatewayId ? ` at ${gatewayId}` : ""}`;
  const reach = historyStartTime
    ? `${whose} goes back to ${moment(back)}, ${age((now - back) / 1_000)} ago:
       to offset ${count(historyStart)} of ${count(nextOffset)}.`
    : `${whose} is empty: it begins at offset ${count(historyStart)}, and nothing has
       changed since.`;
  const left = `The newest ${CHANGES_MAX} are shown; older ones of this row are in the history.`;
  return html`<p class="dim">${reach} ${truncated && left}</p>`;
}

function Log({ list, none }) {
  if (!list.length) return html`<p>${none}</p>`;
  const field = (change) => (column) => {
    const [was, is] = [change.before, change.row].map((row) => cell(row[column.name], column));
    return html`<br key=${column.name} /><span class="dim">${column.field}</span> <bdi>${was}</bdi> → <bdi>${is}</bdi>`;
  };
  const line = (change) => html`<li key=${change.id}>
    <time>${moment(change.atMs)}</time> ${change.what}
    ${change.version && html`<span class="version">${change.version}</span>`}${change.fields.map(field(change))}
  </li>`;
  return html`<ol class="plain log" aria-live="polite" tabindex="0" aria-label="Changes, the newest first">
    ${list.map(line)}
  </ol>`;
}
