// The console: which screen is shown, and what all of them have in common.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { getJson } from "./api.js";
import { Calls } from "./calls.js";
import { age } from "./format.js";
import { PartitionMap } from "./map.js";
import { Row } from "./row.js";
import { Rows } from "./rows.js";
import { askStatus } from "./status.js";
import { Tables } from "./tables.js";
import { nextTheme, theme } from "./theme.js";
import { Empty, html, Loading, Problem, Stale, STALE_MS, useNow, usePolled } from "./ui.js";

const STATUS_EVERY_MS = 2_000;
const CONTRACTS_EVERY_MS = 60_000;

const SCREENS = [
  ["tables", "Tables"],
  ["map", "Map"],
  ["rows", "Rows"],
  ["calls", "Calls"],
];

// "#/rows/ratings?query=ListRatings" → screen, table and texts.
function placeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [screen, table = ""] = path.split("/");
  return {
    screen: screen || "tables",
    table: decodeURIComponent(table),
    texts: Object.fromEntries(new URLSearchParams(query)),
  };
}

function go(path) {
  location.hash = path;
}

function App() {
  const [session, setSession] = useState(0);
  useEffect(() => {
    const next = () => setSession((before) => before + 1);
    addEventListener("credential", next);
    return () => removeEventListener("credential", next);
  }, []);
  return html`<${Shell} key=${session} />`;
}

function Shell() {
  const now = useNow();
  const [place, setPlace] = useState(placeOf(location.hash));
  const main = useRef(null);
  const status = usePolled(askStatus, STATUS_EVERY_MS, []);
  const contracts = usePolled((signal) => getJson("console/contracts.json", signal), CONTRACTS_EVERY_MS, []);
  useEffect(() => {
    const move = () => {
      setPlace(placeOf(location.hash));
      main.current.focus({ preventScroll: true });
      scrollTo(0, 0);
    };
    addEventListener("hashchange", move);
    return () => removeEventListener("hashchange", move);
  }, []);
  useEffect(() => {
    const name = SCREENS.find(([screen]) => screen === place.screen)?.[1] ?? "Row";
    document.title = `${[name, place.table].filter(Boolean).join(" of ")} · Tablegate`;
  }, [place]);
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>To the content</a>
    <header>
      <a class="brand" href="#/"><img src="console/icon.svg" alt="" width="20" height="20" />Tablegate</a>
      <nav aria-label="Screens">${SCREENS.map(([screen, name]) => html`<a key=${screen} href=${`#/${screen}`} aria-current=${(place.screen === "row" ? "rows" : place.screen) === screen ? "page" : undefined}>${name}</a>`)}</nav>
      <${Connection} status=${status} now=${now} />
      <${Theme} />
    </header>
    <main id="main" ref=${main} tabindex="-1">
      <${Warnings} status=${status.value} />
      <${Screen} place=${place} status=${status} contracts=${contracts} now=${now} />
    </main>`;
}

function Connection({ status, now }) {
  const { value, error, atMs } = status;
  const isOld = value && now - atMs > STALE_MS;
  const [tone, text] = error
    ? error.kind === "refused"
      ? ["warn", "no right to the status"]
      : ["bad", value ? `no answer, ${age((now - atMs) / 1_000)} old` : "no answer"]
    : isOld
      ? ["warn", `${age((now - atMs) / 1_000)} old`]
      : value
        ? ["good", "live"]
        : ["", "asking"];
  return html`<p class="connection"><span class=${`dot ${tone}`}></span>${value?.gatewayId && html`<strong>${value.gatewayId}</strong> `}<span>${text}</span></p>`;
}

function Theme() {
  const [name, setName] = useState(theme());
  return html`<button class="theme" type="button" onClick=${() => setName(nextTheme())} aria-label=${`Colours: ${name}. Change them`}>◐ ${{ auto: "Auto", light: "Light", dark: "Dark" }[name]}</button>`;
}

// What is wrong with the whole gateway, in a sentence each.
function Warnings({ status }) {
  if (!status) return null;
  return html`
    ${status.replicatorHangs && html`<div class="banner bad" role="alert"><strong>The replicator hangs.</strong> What is here is answered, and grows older. It is restarted by itself; the log says more.</div>`}
    ${!status.kafkaReachable && html`<div class="banner" role="alert"><strong>The brokers do not answer.</strong> Rows are answered as they were, and grow older. Look at Kafka, and at the gateway's --bootstrap.</div>`}`;
}

function Screen({ place, status, contracts, now }) {
  if (place.screen === "calls") return html`<${Calls} now=${now} />`;
  if (place.screen === "rows" || place.screen === "row") {
    if (!contracts.value) return waiting("Rows", contracts, "the contracts");
    const table = place.table || contracts.value.tables[0]?.name;
    const Shown = place.screen === "row" ? Row : Rows;
    return html`<${Shown} key=${place.screen === "row" ? location.hash : table} contracts=${contracts.value} table=${table} texts=${place.texts} now=${now} go=${go} />`;
  }
  if (place.screen === "map") {
    const names = (status.value?.tables ?? []).map((each) => each.table);
    const tables = names.length ? names : (contracts.value?.tables ?? []).map((each) => each.name);
    if (!tables.length) return waiting("Map", status, "the tables");
    const table = place.table || tables[0];
    return html`<${PartitionMap} key=${table} status=${status.value} table=${table} tables=${tables} now=${now} go=${go} />`;
  }
  if (place.screen !== "tables")
    return html`<h1>Nothing here</h1><${Empty} title="This address leads nowhere"><a href="#/">To the tables</a><//>`;
  if (!status.value) return waiting("Tables", status, "the tables");
  return html`<${Stale} error=${status.error} atMs=${status.atMs} now=${now} again=${status.again} /><${Tables} status=${status.value} contracts=${contracts.value} now=${now} />`;
}

function waiting(title, asked, what) {
  return html`<h1>${title}</h1>${asked.error ? html`<${Problem} error=${asked.error} again=${asked.again} />` : asked.value ? html`<${Empty} title="No tables yet">The gateway has no status of any table: its replicator has just begun, or is away. Its log says which.<//>` : html`<${Loading} what=${what} />`}`;
}

render(html`<${App} />`, document.body);
