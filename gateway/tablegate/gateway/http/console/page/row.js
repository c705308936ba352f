// One row: what it is, who answers and why, how it has changed, and how to ask for it.

import { useEffect, useState } from "preact/hooks";
import { unary } from "./api.js";
import { Changes, changedFields, useHistory } from "./changes.js";
import { cell } from "./format.js";
import { commandsOf, emptyOf, keyTexts, requestOf, valueOf } from "./requests.js";
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
  if (!get) return html`<${NoGet} />`;
  return html`<${One} ...${{ table, get, texts, now }} dataPort=${contracts.dataPort} />`;
}

function NoGet() {
  return html`<h1>Row</h1>
    <${Empty} title="This table has no Get">
      Rows of it cannot be asked for by key. <a href="#/">To the tables</a>
    <//>`;
}

function One({ table, get, texts, now, dataPort }) {
  const request = requestOf(get, texts);
  const live = liveQuery(table, get, texts) ?? { query: get, request };
  const { set, error, again } = useRows(table, live.query, live.request);
  const row = set.all()[0];
  const changes = useChanges(table, set, row);
  const history = useHistory(table, get, request, row);
  const key = get.params.map((param) => texts[param.name]).join(", ");
  const isLive = live.query.kind === "subscribe";
  const { atMs, list } = changes;
  return html`<div class="head">
      <h1>${table.name} <code>${key}</code></h1>
      <a class="choice" href=${`#/rows/${encodeURIComponent(table.name)}`}>All rows</a>
    </div>
    ${row && html`<${Stale} ...${{ error, atMs, now, again }} />`}
    <section class="pair">
      <div class="panel">
        <h2>Row${set.isWhole && isLive && !error && html` <span class="live">live</span>`}</h2>
        <${Shown} ...${{ table, set, row, error, again, isLive }} latest=${list[0]} />
      </div>
      <${Answers} get=${get} request=${request} now=${now} />
      <${Changes} seen=${list} ...${{ history, isLive, now }} />
      <${Commands} get=${get} request=${request} dataPort=${dataPort} />
    </section>`;
}

function Shown({ table, set, row, error, again, isLive, latest }) {
  if (row) return html`<${Columns} table=${table} row=${row} latest=${latest} />`;
  if (error) return html`<${Problem} error=${error} again=${again} />`;
  if (!set.isWhole) return html`<${Loading} what="the row" />`;
  return html`<${Empty} title="No row has this key">
    It was deleted, or never there. ${isLive && "When it comes, it appears here."}
  <//>`;
}

// A Subscribe to the row alone, where the contract has one that takes a key.
function liveQuery(table, get, texts) {
  for (const query of table.queries.filter((each) => each.kind === "subscribe")) {
    const values = new Map(
      // One that is left out would be no filter: the row is that of the key with nothing there.
      get.params.map((param) => [
        param.column,
        requestOf({ params: [param] }, texts)[param.name] ?? valueOf(param, emptyOf(param)),
      ]),
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
      const fields = row && before.row ? changedFields(table, before.row, row) : [];
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
  const line = (column) => {
    const text = cell(row[column.name], column);
    const isKey = table.key.includes(column.name);
    // The text as a key makes the element anew, so that its change is seen each time.
    return html`<div key=${column.name}>
      <dt title=${column.about}>${column.field}${isKey && html` <span class="dim">key</span>`}</dt>
      <dd key=${text} class=${changed.has(column.name) ? "changed" : ""}>${text}</dd>
    </div>`;
  };
  return html`<dl class="columns">${table.columns.map(line)}</dl>`;
}

function Answers({ get, request, now }) {
  const { value, error, atMs, again } = usePolled(
    (signal) => unary(`${GATEWAY}/Explain`, { method: get.path, json: JSON.stringify(request) }, signal),
    EXPLAIN_EVERY_MS,
    [get.path, JSON.stringify(request)],
  );
  const waiting = error
    ? html`<${Problem} error=${error} again=${again} />`
    : html`<${Loading} what="an explanation" />`;
  return html`<div class="panel">
    <h2>Who answers, and why</h2>
    ${value ? html`<${Stale} ...${{ error, atMs, now, again }} /><${Explanation} value=${value} />` : waiting}
  </div>`;
}

function Explanation({ value }) {
  const line = ({ partition = 0, route, gatewayId, why, replicas = [] }) => {
    const holders = replicas.map((replica) => replica.gatewayId || "this gateway").join(", ");
    return html`<li key=${partition}>
      <strong>Partition ${partition}</strong> ${ROUTES[route]}${gatewayId && html` by <strong>${gatewayId}</strong>`}
      <br /><span class="dim">${sentence(why)}</span>
      ${holders && html`<br /><span class="dim">Held by ${holders}.</span>`}
    </li>`;
  };
  return html`<p>${sentence(value.reads)} ${sentence(value.freshness)}</p>
    <ul class="plain">
      ${(value.partitions ?? []).map(line)}
    </ul>
    ${(value.notPromised ?? []).map((text) => html`<p class="old" key=${text}>${text}</p>`)}`;
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
  const button = (each) => {
    const choose = () => setName(each);
    return html`<button key=${each} type="button" aria-pressed=${each === name} onClick=${choose}>${each}</button>`;
  };
  return html`<div class="panel">
    <h2>Ask for it elsewhere</h2>
    <div class="tabs" role="group" aria-label="Language">${Object.keys(commands).map(button)}</div>
    <pre tabindex="0" aria-label=${name}>${commands[name]}</pre>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>`}
  </div>`;
}
