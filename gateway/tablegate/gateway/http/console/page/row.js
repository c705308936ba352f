// One row: what it is, who answers and why, how it has changed since the page was opened, and how to ask for it.

import { useEffect, useState } from "preact/hooks";
import { unary } from "./api.js";
import { cell, clock, count } from "./format.js";
import { commandsOf, keyTexts, requestOf } from "./requests.js";
import { keyOf, useRows } from "./rowset.js";
import { GATEWAY } from "./status.js";
import { Empty, html, Loading, Problem, sentence, Stale, usePolled } from "./ui.js";

const CHANGES_MAX = 100;
const EXPLAIN_EVERY_MS = 4_000;

const ROUTES = {
  PARTITION_ROUTE_HERE: "from here",
  PARTITION_ROUTE_FORWARDED: "forwarded",
  PARTITION_ROUTE_NONE: "from nowhere",
};

export function Row({ contracts, table: name, texts, now }) {
  const table = contracts.tables.find((each) => each.name === name);
  const get = table?.queries.find((each) => each.kind === "get" && !each.index);
  if (!get)
    return html`<h1>Row</h1><${Empty} title="This table has no Get">Rows of it cannot be asked for by key. <a href="#/">To the tables</a><//>`;
  return html`<${One} table=${table} get=${get} texts=${texts} now=${now} dataPort=${contracts.dataPort} />`;
}

function One({ table, get, texts, now, dataPort }) {
  const request = requestOf(get, texts);
  const live = liveQuery(table, get, texts) ?? { query: get, request };
  const { set, error, again } = useRows(table, live.query, live.request);
  const row = set.all()[0];
  const changes = useChanges(table, set, row);
  const key = get.params.map((param) => texts[param.name]).join(", ");
  return html`<div class="head"><h1>${table.name} <code>${key}</code></h1><a class="choice" href=${`#/rows/${encodeURIComponent(table.name)}`}>All rows</a></div>
    ${error && row && html`<${Stale} error=${error} atMs=${changes.atMs} now=${now} again=${again} />`}
    <section class="pair">
      <div class="panel">
        <h2>Row${set.isWhole && live.query.kind === "subscribe" && !error && html` <span class="live">live</span>`}</h2>
        ${row ? html`<${Columns} table=${table} row=${row} latest=${changes.list[0]} />` : error ? html`<${Problem} error=${error} again=${again} />` : set.isWhole ? html`<${Empty} title="No row has this key">It was deleted, or never there.${live.query.kind === "subscribe" && " When it comes, it appears here."}<//>` : html`<${Loading} what="the row" />`}
      </div>
      <${Answers} get=${get} request=${request} now=${now} />
      <${Changes} table=${table} list=${changes.list} isLive=${live.query.kind === "subscribe"} />
      <${Commands} get=${get} request=${request} dataPort=${dataPort} />
    </section>`;
}

// A Subscribe to the row alone, where the contract has one that takes a key.
function liveQuery(table, get, texts) {
  for (const query of table.queries.filter((each) => each.kind === "subscribe")) {
    const values = new Map(
      get.params.map((param) => [param.column, requestOf({ params: [param] }, texts)[param.name]]),
    );
    const params = get.params.map((param) =>
      query.params.find((each) => each.column === param.column && each.op === "EQ" && !each.repeated),
    );
    if (params.every(Boolean) && query.params.every((each) => !each.required || params.includes(each))) {
      return { query, request: Object.fromEntries(params.map((param) => [param.name, values.get(param.column)])) };
    }
    if (query.keys && !query.params.some((each) => each.required)) {
      const inOrder = [...values.values()];
      const one = query.keyFields.length
        ? Object.fromEntries(query.keyFields.map((field, place) => [field, inOrder[place]]))
        : inOrder[0];
      return { query, request: { [query.keys]: [one] } };
    }
  }
  return null;
}

// What has become of the row since it was first seen, the newest first.
function useChanges(table, set, row) {
  const [seen, setSeen] = useState({ row: undefined, list: [], atMs: 0 });
  useEffect(() => {
    if (!set.isWhole && !row) return;
    setSeen((before) => {
      if (before.row === row) return before;
      const fields =
        row && before.row
          ? table.columns.filter(
              (column) => JSON.stringify(row[column.name]) !== JSON.stringify(before.row[column.name]),
            )
          : [];
      if (row && before.row && !fields.length) return { ...before, row };
      const what = !row ? "deleted" : before.row ? "changed" : before.list.length ? "is back" : "first seen";
      const change = { id: before.list.length, atMs: Date.now(), what, fields, before: before.row, row };
      return {
        row,
        atMs: change.atMs,
        list: before.row === undefined && !row ? before.list : [change, ...before.list].slice(0, CHANGES_MAX),
      };
    });
  }, [row, set.isWhole]);
  return seen;
}

function Columns({ table, row, latest }) {
  const changed = new Set(latest?.fields.map((column) => column.name));
  return html`<dl class="columns">${table.columns.map((column) => html`<div key=${column.name}><dt title=${column.about}>${column.field}${table.key.includes(column.name) && html` <span class="dim">key</span>`}</dt><dd class=${changed.has(column.name) ? "changed" : ""} key=${cell(row[column.name], column)}>${cell(row[column.name], column)}</dd></div>`)}</dl>`;
}

function Answers({ get, request, now }) {
  const { value, error, atMs, again } = usePolled(
    (signal) => unary(`${GATEWAY}/Explain`, { method: get.path, json: JSON.stringify(request) }, signal),
    EXPLAIN_EVERY_MS,
    [get.path, JSON.stringify(request)],
  );
  return html`<div class="panel">
    <h2>Who answers, and why</h2>
    ${!value && (error ? html`<${Problem} error=${error} again=${again} />` : html`<${Loading} what="an explanation" />`)}
    ${value && error && html`<${Stale} error=${error} atMs=${atMs} now=${now} again=${again} />`}
    ${
      value &&
      html`
      <p>${sentence(value.reads)} ${sentence(value.freshness)}</p>
      <ul class="plain">${(value.partitions ?? []).map((each) => html`<li key=${each.partition ?? 0}><strong>Partition ${each.partition ?? 0}</strong> ${ROUTES[each.route]}${each.gatewayId && html` by <strong>${each.gatewayId}</strong>`}<br /><span class="dim">${sentence(each.why)}</span>${each.replicas?.length > 0 && html`<br /><span class="dim">Held by ${each.replicas.map((replica) => replica.gatewayId || "this gateway").join(", ")}.</span>`}</li>`)}</ul>
      ${(value.notPromised ?? []).map((text) => html`<p class="old" key=${text}>${text}</p>`)}`
    }
  </div>`;
}

function Changes({ table, list, isLive }) {
  return html`<div class="panel">
    <h2>Changes since you opened this</h2>
    ${!isLive && html`<p class="dim">The contract has no Subscribe that takes a key, so changes do not appear by themselves.</p>`}
    ${list.length ? html`<ol class="plain log" aria-live="polite">${list.map((change) => html`<li key=${change.id}><time>${clock(change.atMs)}</time> ${change.what}${change.fields.map((column) => html`<br key=${column.name} /><span class="dim">${column.field}</span> ${cell(change.before[column.name], column)} → ${cell(change.row[column.name], column)}`)}</li>`)}</ol>` : html`<p class="dim">None yet.</p>`}
  </div>`;
}

function Commands({ get, request, dataPort }) {
  const commands = commandsOf(get, request, dataPort);
  const [name, setName] = useState("grpcurl");
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(commands[name]);
    setCopied(true);
    setTimeout(() => setCopied(false), 1_500);
  };
  return html`<div class="panel">
    <h2>Ask for it elsewhere</h2>
    <div class="tabs" role="group" aria-label="Language">${Object.keys(commands).map((each) => html`<button key=${each} type="button" aria-pressed=${each === name} onClick=${() => setName(each)}>${each}</button>`)}</div>
    <pre tabindex="0" aria-label=${name}>${commands[name]}</pre>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>`}
  </div>`;
}
