// What GetStatus says, with what only two answers tell: how many records are applied each second.

import { unary } from "./api.js";
import { age, count, POINTS, secondsSince } from "./format.js";

export const GATEWAY = "tablegate.v1.GatewayService";

// How fast numbers grow, by name: each second between the last answers, the newest last.
export class Rates {
  #points = new Map();
  #before = null;

  add(numbers, nowMs) {
    const before = this.#before;
    for (const [name, number] of numbers) {
      const last = before?.numbers.get(name);
      if (last === undefined || nowMs <= before.nowMs) continue;
      const perSecond = Math.max(0, ((number - last) * 1_000) / (nowMs - before.nowMs));
      this.#points.set(name, [...this.of(name), perSecond].slice(-POINTS));
    }
    this.#before = { numbers, nowMs };
  }

  of(name) {
    return this.#points.get(name) ?? [];
  }
}

const rates = new Rates(); // by table; kept while one goes from screen to screen

export async function askStatus(signal) {
  const status = await unary(`${GATEWAY}/GetStatus`, { withSnapshots: true }, signal);
  const applied = (status.tables ?? []).map((table) => [table.table, sum(table.partitions, "nextOffset")]);
  rates.add(new Map(applied), Date.now());
  return status;
}

export function ratesOf(table) {
  return rates.of(table);
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

// What is known of a table's snapshot files, in sentences: how many partitions have one, and which were of no use.
export function snapshotsOf(table, snapshots, now) {
  const of = (each) => each.table === table.table;
  const files = (snapshots?.files ?? []).filter(of);
  const ages = files.map((each) => secondsSince(each.writeTime, now)).filter((each) => each != null);
  const oldest = ages.length ? `, the oldest ${age(Math.max(0, ...ages))} old` : "";
  const useless = (snapshots?.useless ?? []).filter(of);
  return {
    files: files.length ? `${count(ages.length)} of ${count(files.length)} snapshot files${oldest}` : "",
    useless: useless.map((each) => `Snapshot file ${each.file} of partition ${each.partition ?? 0} is of no use: ${each.problem}`),
  };
}

export function stateOf(table) {
  const name = (table.state ?? "").replace("TABLE_STATE_", "").toLowerCase().replaceAll("_", " ");
  if (table.fault || name === "refused") return { name: name || "fault", tone: "bad" };
  if (table.serving) return { name: "serving", tone: "good" };
  return { name: !name || name === "unspecified" || name === "serving" ? "not all served" : name, tone: "warn" };
}
