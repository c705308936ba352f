// The console: which screen is shown, and what all of them have in common.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { getJson } from "./api.js";
import { Calls } from "./calls.js";
import { age } from "./format.js";
import { Job } from "./job.js";
import { PartitionMap } from "./map.js";
import { Row } from "./row.js";
import { Rows } from "./rows.js";
import { askStatus } from "./status.js";
import { NoTables, Tables } from "./tables.js";
import { nextTheme, theme } from "./theme.js";
import { Empty, html, Loading, Problem, Stale, STALE_MS, sentence, useNow, usePolled } from "./ui.js";

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
    table: decoded(table),
    texts: Object.fromEntries(new URLSearchParams(query)),
  };
}

// What is no escape stands for itself: "100%".
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
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
  // A gateway that was away may have been started with other contracts.
  const isAway = status.error != null;
  const wasAway = useRef(false);
  useEffect(() => {
    if (wasAway.current && !isAway) contracts.again();
    wasAway.current = isAway;
  }, [isAway]);
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
    const name = SCREENS.find(([screen]) => screen === place.screen)?.[1] ?? (place.screen === "job" ? "Job" : "Row");
    document.title = `${[name, place.table].filter(Boolean).join(" of ")} · Tablegate`;
  }, [place]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  const current = { row: "rows", job: "tables" }[place.screen] ?? place.screen;
  return html`<a class="skip" href="#main" onClick=${skip}>To the content</a>
    <header>
      <a class="brand" href="#/"><img src="console/icon.svg" alt="" width="20" height="20" />Tablegate</a>
      <nav aria-label="Screens">
        ${SCREENS.map(([screen, name]) => {
          const isCurrent = current === screen ? "page" : undefined;
          return html`<a key=${screen} href=${`#/${screen}`} aria-current=${isCurrent}>${name}</a>`;
        })}
      </nav>
      <${Connection} status=${status} now=${now} />
      <${Theme} />
    </header>
    <main id="main" ref=${main} tabindex="-1">
      <${Warnings} status=${status.value} />
      <${Screen} place=${place} status=${status} contracts=${contracts} now=${now} />
    </main>`;
}

function Connection({ status, now }) {
  const [tone, text] = connectionOf(status, now);
  const name = status.value?.gatewayId;
  return html`<p class="connection">
    <span class=${`dot ${tone}`}></span>${name && html`<strong>${name}</strong> `}<span>${text}</span>
  </p>`;
}

function connectionOf({ value, error, atMs }, now) {
  const old = `${age((now - atMs) / 1_000)} old`;
  if (error?.kind === "refused") return ["warn", "no right to the status"];
  if (error) return ["bad", value ? `no answer, ${old}` : "no answer"];
  if (!value) return ["", "asking"];
  return now - atMs > STALE_MS ? ["warn", old] : ["good", "live"];
}

function Theme() {
  const [name, setName] = useState(theme());
  const shown = { auto: "Auto", light: "Light", dark: "Dark" }[name];
  const label = `${shown}: colours. Change them`;
  return html`<button class="theme" type="button" onClick=${() => setName(nextTheme())} aria-label=${label}>
    ◐ ${shown}
  </button>`;
}

// What is wrong with the whole gateway, in a sentence each.
function Warnings({ status }) {
  if (!status) return null;
  return html`${
    status.replicatorHangs &&
    html`<div class="banner bad" role="alert">
    <strong>The replicator hangs.</strong> What is here is answered, and grows older. It is restarted by itself; the log
    says more.
  </div>`
  }
  ${
    !status.kafkaReachable &&
    html`<div class="banner" role="alert">
    <strong>The brokers do not answer.</strong> Rows are answered as they were, and grow older. Look at Kafka, and at
    the gateway's --bootstrap.
  </div>`
  }
  ${
    status.snapshots?.problem &&
    html`<div class="banner" role="alert">
    <strong>No snapshot file can be written.</strong> ${sentence(status.snapshots.problem)} Nothing is answered less well;
    a gateway that loses its store reads more of the changelog.
  </div>`
  }`;
}

function Screen({ place, status, contracts, now }) {
  switch (place.screen) {
    case "tables":
      return html`<${TablesScreen} status=${status} contracts=${contracts} now=${now} />`;
    case "map":
      return html`<${MapScreen} place=${place} status=${status} contracts=${contracts} now=${now} />`;
    case "rows":
    case "row":
      return html`<${RowsScreen} place=${place} contracts=${contracts} now=${now} />`;
    case "job":
      return html`<${JobScreen} place=${place} status=${status} now=${now} />`;
    case "calls":
      return html`<${Calls} now=${now} />`;
    default:
      return html`<h1>Nothing here</h1>
        <${Empty} title="This address leads nowhere"><a href="#/">To the tables</a><//>`;
  }
}

function TablesScreen({ status, contracts, now }) {
  const { value, error, atMs, again } = status;
  if (!value) return html`<${Waiting} title="Tables" asked=${status} what="the tables" />`;
  return html`<${Stale} ...${{ error, atMs, now, again }} />
    <${Tables} status=${value} contracts=${contracts.value} serverNow=${serverTime(status, now)} />`;
}

// Clocks of browsers may be wrong: what the gateway said is counted on from when it came.
function serverTime({ value, atMs }, now) {
  return value?.beatTime && !value.replicatorHangs ? Date.parse(value.beatTime) + now - atMs : now;
}

function JobScreen({ place, status, now }) {
  const tables = (status.value?.tables ?? []).map((each) => each.table);
  const table = place.table || tables[0];
  if (!table) return html`<${Waiting} title="Job" asked=${status} what="the tables" />`;
  const serverNow = serverTime(status, now);
  return html`<${Job} key=${table} status=${status.value} ...${{ table, tables, serverNow, now, go }} />`;
}

function MapScreen({ place, status, contracts, now }) {
  const names = (status.value?.tables ?? []).map((each) => each.table);
  const tables = names.length ? names : (contracts.value?.tables ?? []).map((each) => each.name);
  const table = place.table || tables[0];
  if (!table) return html`<${Waiting} title="Map" asked=${status} what="the tables" />`;
  return html`<${PartitionMap} key=${table} status=${status.value} ...${{ table, tables, now, go }} />`;
}

function RowsScreen({ place, contracts, now }) {
  if (!contracts.value) return html`<${Waiting} title="Rows" asked=${contracts} what="the contracts" />`;
  const { screen, texts } = place;
  const table = place.table || contracts.value.tables[0]?.name;
  const [Shown, key] = screen === "row" ? [Row, JSON.stringify(place)] : [Rows, table];
  return html`<${Shown} key=${key} contracts=${contracts.value} ...${{ table, texts, now, go }} />`;
}

// What is shown of a screen before there is anything to show.
function Waiting({ title, asked, what }) {
  const shown = asked.error
    ? html`<${Problem} error=${asked.error} again=${asked.again} />`
    : asked.value
      ? html`<${NoTables} />`
      : html`<${Loading} what=${what} />`;
  return html`<h1>${title}</h1>
    ${shown}`;
}

render(html`<${App} />`, document.body);
