// Small plots: the last values of something, without axes. The figure beside a plot says what it is now.

import { html } from "./ui.js";

const WIDTH = 96;
const HEIGHT = 22;

export function Plot({ values, label }) {
  const known = values.filter((value) => value != null);
  const top = Math.max(...known, 0) || 1;
  const step = WIDTH / Math.max(values.length - 1, 1);
  const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
  const points = values.map((value, place) => (value == null ? null : [place * step, y(value)]));
  const line = points
    .map((point, place) => point && `${points[place - 1] ? "L" : "M"}${pointText(point)}`)
    .filter(Boolean)
    .join("");
  const last = points.at(-1);
  return html`<svg class="plot" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${label} preserveAspectRatio="none">
    <path class="base" d="M0 ${HEIGHT - 0.5}H${WIDTH}" />
    ${known.length > 1 && html`<path class="area" d=${areaOf(points)} /><path class="line" d=${line} />`}
    ${last && html`<circle cx=${last[0]} cy=${last[1]} r="1.6" />`}
  </svg>`;
}

function pointText([x, y]) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

function areaOf(points) {
  const known = points.filter(Boolean);
  const first = known[0];
  const last = known.at(-1);
  return `M${first[0].toFixed(1)} ${HEIGHT}L${known.map(pointText).join("L")}L${last[0].toFixed(1)} ${HEIGHT}Z`;
}
