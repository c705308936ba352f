// How numbers, ages and values are shown.

export const POINTS = 60; // values of a plot
const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const NUMBERS = /^(u?int|s?fixed|sint|sfixed)(32|64)$|^(float|double)$/;
const STEPS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

export const NONE = "–";

export function count(value) {
  return value == null ? NONE : NUMBER.format(value);
}

export function short(value) {
  return value == null ? NONE : SHORT.format(value);
}

export function rate(perSecond) {
  if (perSecond == null) return NONE;
  return perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : SHORT.format(perSecond);
}

export function age(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  const shown = Math.max(0, seconds);
  for (const [size, unit] of STEPS) if (shown >= size) return `${Math.floor(shown / size)} ${unit}`;
  return shown < 10 ? `${shown.toFixed(1)} s` : `${Math.round(shown)} s`;
}

export function milliseconds(seconds) {
  if (seconds == null) return NONE;
  const shown = seconds * 1_000;
  return shown < 10
    ? `${shown.toFixed(shown < 1 ? 2 : 1)} ms`
    : shown < 1_000
      ? `${Math.round(shown)} ms`
      : age(seconds);
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let shown = value;
  while (shown >= 1_024 && units.length > 1) {
    shown /= 1_024;
    units.shift();
  }
  return `${shown < 10 && units[0] !== "B" ? shown.toFixed(1) : Math.round(shown)} ${units[0]}`;
}

export function clock(ms) {
  return TIME.format(ms);
}

// The time, with the day where that is another one.
export function moment(ms) {
  return new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : `${DAY.format(ms)}, ${clock(ms)}`;
}

export function isNumber(column) {
  return !column.repeated && NUMBERS.test(column.type);
}

// A value of a row, as a cell has it. What proto3's JSON leaves out is the value that fields begin with.
export function cell(value, column) {
  if (value === undefined) return column.repeated || column.optional ? NONE : beginning(column);
  if (typeof value === "object") return JSON.stringify(value);
  if (column.type === "google.protobuf.Timestamp") return String(value).replace("T", " ").replace("Z", "");
  return Object.is(value, -0) ? "-0" : String(value);
}

function beginning(column) {
  if (column.values) return column.values[0];
  if (isNumber(column)) return "0";
  return column.type === "bool" ? "false" : "";
}

export function secondsSince(timestamp, nowMs) {
  return timestamp ? (nowMs - Date.parse(timestamp)) / 1_000 : null;
}
