// A table of many rows: only those that are seen are in the page. All rows have one height, so places are known.

import { useEffect, useRef, useState } from "preact/hooks";
import { cell, isNumber } from "./format.js";
import { html } from "./ui.js";

const ROW_PX = 30;
const SHOWN_MAX = 500;
const BEYOND = 12; // rows above and below those that are seen

// More is not seen on one line, and a browser is slow with lines of a megabyte.
function beginning(text) {
  return text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}…` : text;
}

export function Grid({ label, columns, rows, total, link, isChanged, onEnd }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const { current } = box;
    const measure = () => setView({ top: current.scrollTop, height: current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(current);
    current.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      current.removeEventListener("scroll", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_PX) - BEYOND);
  const end = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_PX) + BEYOND);
  useEffect(() => {
    if (end >= rows.length) onEnd?.();
  }, [end, rows.length]);
  const space = (count) => {
    const style = { height: `${count * ROW_PX}px`, padding: 0 };
    return count > 0 && html`<tr aria-hidden="true"><td colspan=${columns.length} style=${style}></td></tr>`;
  };
  const head = (column) => {
    const kind = isNumber(column) ? "number" : "";
    return html`<th key=${column.name} scope="col" class=${kind} title=${column.about}>${column.field}</th>`;
  };
  const line = (row, place) => {
    const number = first + place;
    return html`<tr key=${number} aria-rowindex=${number + 2} class=${isChanged(row) ? "changed" : ""}>
      ${columns.map((column, at) => {
        const text = beginning(cell(row[column.name], column));
        const shown = at === 0 && link ? html`<a href=${link(row)}>${text || "(empty)"}</a>` : text;
        return html`<td key=${column.name} class=${isNumber(column) ? "number" : ""}>${shown}</td>`;
      })}
    </tr>`;
  };
  return html`<div class="grid" ref=${box} tabindex="0" role="region" aria-label=${label}>
    <table aria-rowcount=${total ?? -1}>
      <thead>
        <tr aria-rowindex="1">
          ${columns.map(head)}
        </tr>
      </thead>
      <tbody>
        ${space(first)} ${rows.slice(first, end).map(line)} ${space(rows.length - end)}
      </tbody>
    </table>
  </div>`;
}
