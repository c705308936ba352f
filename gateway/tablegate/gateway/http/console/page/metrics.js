// What /metrics says of calls: how many a second, and how long they took, by method. The text is Prometheus' format.

import { POINTS } from "./format.js";

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const DURATIONS = "tablegate_call_duration_seconds";
const P99_ROUNDS = 5; // of which the p99 is: one round has too few calls

export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (found) samples.push({ name: found[1], labels: labelsOf(found[2] ?? ""), value: Number(found[3]) });
  }
  return samples;
}

function labelsOf(text) {
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, "$1")]));
}

// The counts of each method: calls, those that failed, and the buckets of durations, cumulative.
export function countsOf(samples) {
  const methods = new Map();
  const of = (method) => {
    if (!methods.has(method)) methods.set(method, { calls: 0, failed: 0, buckets: new Map() });
    return methods.get(method);
  };
  for (const { name, labels, value } of samples) {
    if (name === `${DURATIONS}_count`) {
      of(labels.method).calls += value;
      if (labels.code !== "OK") of(labels.method).failed += value;
    } else if (name === `${DURATIONS}_bucket`) {
      const { buckets } = of(labels.method);
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      buckets.set(bound, (buckets.get(bound) ?? 0) + value);
    }
  }
  return methods;
}

export function total(samples, name) {
  return samples.filter((sample) => sample.name === name).reduce((sum, sample) => sum + sample.value, 0);
}

// What was seen, the newest last. `add` takes the counts of a moment.
export class CallHistory {
  rounds = [];

  add(counts, nowMs) {
    this.rounds = [...this.rounds, { counts, nowMs }].slice(-POINTS - 1);
  }

  // Lines of the table of methods: rates of each round, and p99 over the last ones.
  methods() {
    const newest = this.rounds.at(-1)?.counts ?? new Map();
    return [...newest].map(([method, counts]) => {
      const rates = this.#rates(method, "calls");
      const failures = this.#rates(method, "failed");
      const p99s = this.rounds.slice(1).map((_, place) => this.#p99(method, place + 1));
      return { method, ...counts, rates, p99s, failing: failures.at(-1) ?? null };
    });
  }

  #rates(method, name) {
    return this.rounds.slice(1).map((round, place) => {
      const before = this.rounds[place];
      const seconds = (round.nowMs - before.nowMs) / 1_000;
      return Math.max(0, of(round, method)[name] - of(before, method)[name]) / seconds;
    });
  }

  #p99(method, place) {
    const newer = of(this.rounds[place], method).buckets;
    const older = of(this.rounds[Math.max(0, place - P99_ROUNDS)], method).buckets;
    return quantile(0.99, new Map([...newer].map(([bound, value]) => [bound, value - (older.get(bound) ?? 0)])));
  }
}

function of(round, method) {
  return round.counts.get(method) ?? { calls: 0, failed: 0, buckets: new Map() };
}

// As Prometheus' histogram_quantile: within a bucket values are taken to be spread evenly. null of no calls.
export function quantile(part, buckets) {
  const bounds = [...buckets.keys()].sort((one, other) => one - other);
  const all = buckets.get(Infinity) ?? 0;
  if (all <= 0) return null;
  const rank = part * all;
  let below = 0;
  let low = 0;
  for (const bound of bounds) {
    const within = buckets.get(bound);
    if (within >= rank)
      return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / (within - below || 1);
    below = within;
    low = bound;
  }
  return low;
}
