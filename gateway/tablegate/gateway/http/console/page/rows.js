// The rows of a table, by each of the queries that its contract has: by key, by a run of keys, by an index, all, live.

import { age, count, secondsSince } from "./format.js";
import { Grid } from "./grid.js";
import { keyTexts, OPERATORS, requestOf } from "./requests.js";
import { keyOf, ROWS_MAX, useRows } from "./rowset.js";
import { Empty, html, Loading, Problem, sentence, TableChoice } from "./ui.js";

const KINDS = { range: "In order", get: "By key", scan: "Scan", subscribe: "Live" };

export function Rows({ contracts, table: name, texts, now, go }) {
  const table = contracts.tables.find((each) => each.name === name);
  if (!table) return html`<${NoTable} name=${name} />`;
  const tables = contracts.tables.map((each) => each.name);
  const queries = table.queries.filter((query) => KINDS[query.kind]).sort(byUse);
  const query = queries.find((each) => methodOf(each) === texts.query) ?? queries.find(needsNothing) ?? queries[0];
  const head = html`<div class="head">
    <h1>Rows of ${name}</h1>
    <${TableChoice} screen="rows" table=${name} tables=${tables} go=${go} />
  </div>`;
  if (!query) return html`${head} <${NoQuery} />`;
  const address = (asked, more = {}) =>
    `/rows/${encodeURIComponent(name)}?${new URLSearchParams({ query: methodOf(asked), ...more })}`;
  const tab = (each) => {
    const isCurrent = each === query ? "true" : undefined;
    return html`<a key=${each.path} href=${`#${address(each)}`} aria-current=${isCurrent}>${labelOf(each)}</a>`;
  };
  const ask = (more) => go(address(query, more));
  return html`${head}
    <nav class="tabs" aria-label="Queries">${queries.map(tab)}</nav>
    <p class="dim">${query.about} <code>${methodOf(query)}</code></p>
    <${Asked} key=${query.path} ...${{ table, query, texts, now, ask }} />`;
}

function NoTable({ name }) {
  return html`<h1>Rows</h1>
    <${Empty} title="There is no such table">
      The contracts of this gateway have no table “${name}”. Choose one of <a href="#/">those that it has</a>.
    <//>`;
}

function NoQuery() {
  return html`<${Empty} title="This table cannot be asked for rows">
    Its contract has neither a Get, nor a Range, a Scan or a Subscribe.
  <//>`;
}

function byUse(one, other) {
  const weight = (query) => Object.keys(KINDS).indexOf(query.kind) * 2 + (query.index ? 1 : 0);
  return weight(one) - weight(other);
}

function needsNothing(query) {
  return !query.params.some((param) => param.required);
}

function methodOf(query) {
  return query.path.split("/")[1];
}

function labelOf(query) {
  return query.index ? `By ${query.index.replace(/^by_/, "").replaceAll("_", " ")}` : KINDS[query.kind];
}

// One query: its form, and what it gives. `ask` goes to the address of the same query with other texts.
function Asked({ table, query, texts, now, ask }) {
  const missing = query.params.filter((param) => param.required && !texts[param.name]);
  const request = requestOf(query, texts);
  const { set, error, again, more } = useRows(table, missing.length ? null : query, request);
  const needed = missing.map((param) => param.label).join(" and ");
  const shown = needed
    ? html`<${Empty} title="What are you looking for?">This query needs ${needed}: fill it in above.<//>`
    : html`<${Found} ...${{ table, query, set, error, again, more, now }} />`;
  return html`<${Form} query=${query} texts=${texts} ask=${ask} /> ${shown}`;
}

// What is typed stays in the fields until it is searched for: then it is in the address.
function Form({ query, texts, ask }) {
  if (!query.params.length) return null;
  const onSubmit = (event) => {
    event.preventDefault();
    ask(Object.fromEntries([...new FormData(event.target)].filter(([, text]) => text !== "")));
  };
  return html`<form class="query" onSubmit=${onSubmit} key=${JSON.stringify(texts)}>
    ${query.params.map((param) => html`<${Field} key=${param.name} param=${param} text=${texts[param.name] ?? ""} />`)}
    <button type="submit">Search</button>
  </form>`;
}

function Field({ param, text }) {
  const { name, required } = param;
  const choices = param.type === "bool" ? ["true", "false"] : !param.repeated && param.values;
  const input = choices
    ? html`<select name=${name} required=${required}>
        <option value="">any</option>
        ${choices.map((each) => html`<option key=${each} value=${each} selected=${each === text}>${each}</option>`)}
      </select>`
    : html`<input
        name=${name}
        required=${required}
        defaultValue=${text}
        placeholder=${placeholderOf(param)}
        autocomplete="off"
        spellcheck="false"
      />`;
  return html`<label><span>${param.label} ${OPERATORS[param.op] ?? "="}</span>${input}</label>`;
}

function placeholderOf(param) {
  if (param.repeated) return "a, b, c";
  return param.type.endsWith("Timestamp") ? "2026-01-31T12:00:00Z" : param.required ? "" : "any";
}

function Found({ table, query, set, error, again, more, now }) {
  const rows = set.all();
  if (!rows.length && error) return html`<${Problem} error=${error} again=${again} />`;
  if (!rows.length && !set.isWhole) return html`<${Loading} what="rows" />`;
  if (!rows.length) return html`<${NoRows} isLive=${query.kind === "subscribe"} />`;
  const isKey = (column) => table.key.includes(column.name);
  const columns = [...table.columns.filter(isKey), ...table.columns.filter((column) => !isKey(column))];
  const get = table.queries.find((each) => each.kind === "get" && !each.index);
  const link = get && ((row) => `#/row/${encodeURIComponent(table.name)}?${new URLSearchParams(keyTexts(get, row))}`);
  const isChanged = (row) => set.isChanged(keyOf(table, row), now);
  const total = set.isWhole ? rows.length + 1 : null;
  const old = set.asOf && html`<span class="dim">, ${age(secondsSince(set.asOf, now))} old at most</span>`;
  const isStream = query.kind === "subscribe" || query.kind === "scan";
  const name = rows.length === 1 ? "row" : "rows";
  return html`<p class="found" role="status">
      <strong>${count(rows.length)}</strong> ${name}${aboutOf(query, set, error)}${old}
    </p>
    ${error && html`<${Broken} ...${{ error, again, isStream }} />`} ${set.isFull && html`<${Full} />`}
    <${Grid} label=${`Rows of ${table.name}`} onEnd=${more} ...${{ columns, rows, total, link, isChanged }} />`;
}

function NoRows({ isLive }) {
  const advice = isLive
    ? "It appears here when there is one."
    : "Change what you look for, or look at the state of the table: it may be empty.";
  return html`<${Empty} title="No rows">No row is like that. ${advice}<//>`;
}

function Broken({ error, again, isStream }) {
  return html`<div class="banner" role="status">
    <strong>${isStream ? "The stream is broken." : "The next rows did not come."}</strong> ${sentence(error.message)}${" "}
    These rows are of before.${isStream && " It goes on by itself where it was."}
    <button type="button" onClick=${again}>Try now</button>
  </div>`;
}

function Full() {
  return html`<div class="banner" role="status">
    <strong>There are more.</strong> The console keeps ${count(ROWS_MAX)} rows: look for fewer.
  </div>`;
}

function aboutOf(query, set, error) {
  if (query.kind === "subscribe" && !error)
    return set.isWhole ? html`, <span class="live">live</span>` : ", and more are coming";
  if (query.kind === "range" && !set.isWhole) return ", more when you scroll";
  return set.isWhole || set.isFull ? "" : ", and more are coming";
}
