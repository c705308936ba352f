// What GetStatus says, with what only two answers tell: how many records are applied each second.

import { unary } from "./api.js";
import { secondsSince } from "./format.js";

const POINTS = 60;

export const GATEWAY = "tablegate.v1.GatewayService";

// The tables' rates, by table: the newest is last. Kept while one goes from screen to screen.
const rates = new Map();
let before = null;

export async function askStatus(signal) {
  const status = await unary(`${GATEWAY}/GetStatus`, {}, signal);
  const now = Date.now();
  const applied = new Map((status.tables ?? []).map((table) => [table.table, sum(table.partitions, "nextOffset")]));
  for (const [table, offset] of applied) {
    const last = before?.applied.get(table);
    const points = rates.get(table) ?? [];
    if (last !== undefined && now > before.now)
      points.push(Math.max(0, ((offset - last) * 1_000) / (now - before.now)));
    rates.set(table, points.slice(-POINTS));
  }
  before = { now, applied };
  return status;
}

export function ratesOf(table) {
  return rates.get(table) ?? [];
}

function sum(partitions = [], name) {
  return partitions.reduce((total, partition) => total + Number(partition[name] ?? 0), 0);
}

// What a table's status comes to: one line of the list of tables.
export function summary(table, now) {
  const partitions = table.partitions ?? [];
  const ages = partitions.map((partition) => secondsSince(partition.asOfTime, now)).filter((age) => age != null);
  return {
    lag: partitions.reduce((total, each) => total + lagOf(each), 0),
    age: ages.length ? Math.max(...ages) : null,
    rate: ratesOf(table.table).at(-1) ?? null,
    setAside: (table.poison ?? []).reduce((total, each) => total + Number(each.count), 0),
    here: partitions.length,
    of: table.manifest?.partitionCount ?? partitions.length,
  };
}

// How old the newest marker of a table's job is, in the partition that has waited the longest; null of none.
export function markerAge(table, now) {
  const ages = (table.partitions ?? []).map((each) => secondsSince(each.markerTime, now));
  return ages.length && ages.every((each) => each != null) ? Math.max(0, ...ages) : null;
}

function lagOf({ endOffset = 0, nextOffset = 0 }) {
  return Math.max(0, Number(endOffset) - Number(nextOffset));
}

export function stateOf(table) {
  const name = (table.state ?? "").replace("TABLE_STATE_", "").toLowerCase().replaceAll("_", " ");
  if (table.fault || name === "refused") return { name: name || "fault", tone: "bad" };
  if (table.serving) return { name: "serving", tone: "good" };
  return { name: !name || name === "unspecified" || name === "serving" ? "not all served" : name, tone: "warn" };
}
