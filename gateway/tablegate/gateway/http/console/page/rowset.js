// The rows that a query gives, as they come: pages of a Range, a Scan's stream, a Subscribe that goes on.

import { useEffect, useReducer, useRef } from "preact/hooks";
import { stream, unary } from "./api.js";
import { useStream } from "./ui.js";

export const ROWS_MAX = 100_000; // what a tab keeps: some 100 MB of wide rows
const PAGE_ROWS = 500;
const CHANGED_MS = 1_500; // as long a changed row is marked

export function keyOf(table, row) {
  return JSON.stringify(table.key.map((name) => row[name] ?? null));
}

class RowSet {
  rows = new Map(); // key → row, in the order in which they came
  changed = new Map(); // key → when
  isWhole = false; // all that the query gives is here
  isFull = false; // there would be more than we keep
  pageToken = "";
  resumeToken = "";
  asOf = null;
  isLoading = false;
  broken = null; // why the next page did not come
  list = null;

  put(table, row, nowMs) {
    const key = keyOf(table, row);
    if (!this.rows.has(key) && this.rows.size >= ROWS_MAX) {
      this.isFull = true;
      return;
    }
    if (nowMs) this.changed.set(key, nowMs);
    this.rows.set(key, row);
    this.list = null;
  }

  delete(table, key) {
    this.rows.delete(keyOf(table, key));
    this.list = null;
  }

  clear() {
    this.rows.clear();
    this.isWhole = this.isFull = false;
    this.list = null;
  }

  // The rows as a list, made once for each change.
  all() {
    this.list ??= [...this.rows.values()];
    return this.list;
  }

  isChanged(key, nowMs) {
    const atMs = this.changed.get(key);
    if (atMs === undefined) return false;
    if (nowMs - atMs < CHANGED_MS) return true;
    this.changed.delete(key);
    return false;
  }
}

// Returns the set of rows, why it is broken, and functions that go on: `more` reads the next page.
export function useRows(table, query, request) {
  const set = useRef(new RowSet());
  const drawing = useRef(0);
  const [, redraw] = useReducer((before) => before + 1, 0);
  const asked = `${query?.path} ${JSON.stringify(request)}`;
  const change = () => {
    drawing.current ||= requestAnimationFrame(() => {
      drawing.current = 0;
      redraw();
    });
  };
  useEffect(() => () => cancelAnimationFrame(drawing.current), []);
  const last = useRef(asked);
  if (last.current !== asked) {
    last.current = asked;
    set.current = new RowSet();
  }
  const { error, again } = useStream(
    (signal, onMessage) =>
      query ? read(set.current, table, query, request, signal, () => (onMessage(), change())) : forever(signal),
    [asked],
  );
  const more = () => {
    const { current } = set;
    if (!current.pageToken || current.isLoading || current.broken || current.rows.size >= ROWS_MAX) return;
    page(current, table, query, request)
      .catch((broken) => (current.broken = broken))
      .then(change);
  };
  const goOn = () => {
    const { kind } = set.current.broken;
    set.current.broken = null;
    if (kind === "lost" || kind === "away") more();
    else again(); // where the page would have begun is no place any more
  };
  const { broken } = set.current;
  return { set: set.current, error: error ?? broken, again: broken ? goOn : again, more };
}

async function read(set, table, query, request, signal, change) {
  if (query.kind === "subscribe") {
    await subscribe(set, table, query, request, signal, change);
    return;
  }
  set.clear();
  set.broken = null;
  if (query.kind === "range") {
    set.pageToken = "";
    await page(set, table, query, request, signal);
  } else if (query.kind === "get") {
    const row = (await unary(query.path, request, signal).catch(ignoreMissing))?.[query.row];
    if (row) set.put(table, row);
    set.isWhole = true;
  } else {
    await scan(set, table, query, request, signal, change);
  }
  change();
  await forever(signal);
}

function ignoreMissing(error) {
  if (error.code !== "not_found") throw error;
}

async function page(set, table, query, request, signal) {
  set.isLoading = true;
  try {
    const size = Math.min(PAGE_ROWS, query.maxPageSize || PAGE_ROWS);
    const answer = await unary(
      query.path,
      { ...request, [query.pageSize]: size, ...(set.pageToken && { [query.pageToken]: set.pageToken }) },
      signal,
    );
    for (const row of answer[query.rows] ?? []) set.put(table, row);
    set.pageToken = answer[query.nextPageToken] ?? "";
    set.isWhole = !set.pageToken;
    set.isFull = set.rows.size >= ROWS_MAX && !set.isWhole;
    set.asOf = answer[query.readInfo]?.asOfTime ?? null;
  } finally {
    set.isLoading = false;
  }
}

async function scan(set, table, query, request, signal, change) {
  const enough = new AbortController();
  signal.addEventListener("abort", () => enough.abort(), { once: true });
  const onMessage = (message) => {
    const rows = message[query.rows] ?? [];
    for (const row of Array.isArray(rows) ? rows : [rows]) set.put(table, row);
    change();
    if (set.isFull) enough.abort();
  };
  try {
    await stream(query.path, request, onMessage, enough.signal);
    set.isWhole = true;
  } catch (error) {
    if (!set.isFull || signal.aborted) throw error;
  }
}

async function subscribe(set, table, query, request, signal, change) {
  const options = set.resumeToken ? { [query.subscribeOptions]: { resumeToken: set.resumeToken } } : {};
  const onMessage = (message) => {
    const progress = message[query.progress];
    if (progress?.phase === "SUBSCRIBE_PHASE_RESET") set.clear();
    const nowMs = set.isWhole ? Date.now() : 0; // rows of the snapshot are not news
    for (const each of message[query.changes] ?? []) {
      if (each[query.upsert]) set.put(table, each[query.upsert], nowMs);
      else if (each[query.delete]) set.delete(table, each[query.delete]);
    }
    if (progress) {
      set.resumeToken = progress.resumeToken ?? set.resumeToken;
      set.isWhole = progress.phase === "SUBSCRIBE_PHASE_CURRENT";
      set.asOf = progress.readInfo?.asOfTime ?? set.asOf;
    }
    change();
  };
  try {
    await stream(query.path, { ...request, ...options }, onMessage, signal);
  } catch (error) {
    if (error.kind !== "wrong" || !set.resumeToken) throw error;
    set.resumeToken = ""; // it is of another life of the table: begin anew
  }
}

function forever(signal) {
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}
