// What all screens are made of: the library, polling, streams, and the states that are not data.

import htm from "htm";
import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { hasCredential, setCredential } from "./api.js";

export const html = htm.bind(h);

const RETRY_MS = 1_000;
const RETRY_MS_MAX = 8_000;
const NEWS_MS = 300; // what changes all the time is asked for not more often
const FINAL = new Set(["refused", "absent", "wrong"]); // to ask again would be answered the same
export const STALE_MS = 8_000; // four polls have failed

// A table that scrolls alone where the window is narrow. `heads`: the name of each column, and its class.
export function List({ label, heads, children }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="list cards">
      <thead>
        <tr>
          ${heads.map(([name, kind]) => html`<th key=${name} scope="col" class=${kind}>${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${children}
      </tbody>
    </table>
  </div>`;
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

// Resolves when somebody can see the page.
function seen(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

// Asks again and again while the page is seen. `value` stays while `error` is there: `atMs` says from when it is.
// What takes long is asked less often: a pause is `pauses` times as long as it took. Sooner where `news` has changed.
export function usePolled(load, everyMs, parts, news, pauses = 4) {
  const [state, setState] = useState({ value: null, error: null, atMs: 0 });
  const [round, setRound] = useState(0);
  const wake = useRef(null);
  useEffect(() => wake.current?.(), [news]);
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    (async () => {
      while (!signal.aborted) {
        await seen(signal);
        const beganMs = Date.now();
        const woken = new Promise((resolve) => (wake.current = resolve));
        try {
          const value = await load(signal);
          if (!signal.aborted) setState({ value, error: null, atMs: Date.now() });
        } catch (error) {
          if (!signal.aborted) setState((before) => ({ ...before, error }));
        }
        const pauseMs = Math.max(everyMs, pauses * (Date.now() - beganMs));
        await sleep(Math.min(NEWS_MS, pauseMs), signal);
        await Promise.race([woken, sleep(pauseMs - NEWS_MS, signal)]);
      }
    })();
    return () => stop.abort();
  }, [...parts, everyMs, round]);
  return { ...state, again: () => setRound((before) => before + 1) };
}

// Follows a stream, and begins it again when it ends or breaks. `open(signal)` follows it once, and calls what it is
// given as messages come. Returns why it is broken, null while it is not; and a function that begins it again.
export function useStream(open, parts) {
  const [error, setError] = useState(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    setError(null);
    (async () => {
      let waitMs = RETRY_MS;
      while (!signal.aborted) {
        const beganMs = Date.now();
        try {
          await open(signal, () => setError(null));
        } catch (broken) {
          if (signal.aborted) return;
          setError(broken);
          if (FINAL.has(broken.kind)) return;
        }
        waitMs = Date.now() - beganMs > RETRY_MS_MAX ? RETRY_MS : Math.min(waitMs * 2, RETRY_MS_MAX);
        await sleep(waitMs, signal);
      }
    })();
    return () => stop.abort();
  }, [...parts, round]);
  return { error, again: () => setRound((before) => before + 1) };
}

// The time, anew every second.
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export function Loading({ what }) {
  return html`<div class="notice loading" role="status">
    <p class="title">Asking for ${what}…</p>
    <p>This takes a moment. If it stays, the gateway is busy or its store is away: <code>tablegate status</code> says which.</p>
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="notice empty"><p class="title">${title}</p><p>${children}</p></div>`;
}

// A choice of one table; `screen` is where it leads.
export function TableChoice({ table, tables, screen, go }) {
  const choose = (event) => go(`/${screen}/${encodeURIComponent(event.target.value)}`);
  return html`<label class="choice">
    Table${" "}
    <select value=${table} onChange=${choose}>
      ${tables.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>
  </label>`;
}

// What went wrong, and what to do.
export function Problem({ error, again }) {
  if (error.kind === "refused") return html`<${Refused} error=${error} again=${again} />`;
  const { title, advice } = PROBLEMS[error.kind] ?? PROBLEMS.failed;
  return html`<div class=${`notice ${error.kind}`} role="alert">
    <p class="title">${title}</p>
    <p>${sentence(error.message)} ${advice}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

const PROBLEMS = {
  lost: {
    title: "The connection is lost",
    advice: "It is tried again by itself. See whether the gateway runs: tablegate status.",
  },
  absent: {
    title: "This is not served here",
    advice: "Open the console of the admin port, or start the gateway with --reflection.",
  },
  away: {
    title: "Nobody can answer this now",
    advice: "It is tried again by itself. The map says who has which partition.",
  },
  wrong: { title: "The gateway refuses this request", advice: "Change what you ask for." },
  failed: { title: "The gateway could not answer this", advice: "Change what you ask for, or try again." },
};

export function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, "")}.` : "";
}

function Refused({ error, again }) {
  const input = useRef(null);
  const show = (event) => {
    event.preventDefault();
    setCredential(input.current.value.trim());
    again?.();
    dispatchEvent(new Event("credential"));
  };
  const advice = hasCredential()
    ? "Show another credential, or ask the operator for the right."
    : "Show a token or an API key: it stays in this tab, and ends with it.";
  return html`<form class="notice refused" role="alert" onSubmit=${show}>
    <p class="title">You may not see this</p>
    <p>${sentence(error.message)} ${advice}</p>
    <label>
      Token or API key
      <input ref=${input} type="password" name="credential" autocomplete="off" required />
    </label>
    <button type="submit">Show it</button>
  </form>`;
}

// What is shown while it may be old.
export function Stale({ error, atMs, now, again }) {
  if (!error) return null;
  if (error.kind === "refused") return html`<${Problem} error=${error} again=${again} />`;
  const seconds = Math.round((now - atMs) / 1_000);
  return html`<div class="banner" role="status">
    <strong>${seconds} s old.</strong> ${sentence(error.message)} What you see is of before; it is asked for again by
    itself.
    ${again && html`<button type="button" onClick=${again}>Try now</button>`}
  </div>`;
}
