// Horizontal bars: parts of a whole with a legend, and a bar within a cell.
import { html } from "../lib/html.js";
import { formatPercent } from "../lib/format.js";

/**
 * A whole with its parts. `parts`: [{label, value, series}], with `series` 1 to 6 or "rest"; `format`: of the values.
 * Each part is named below the bar, with its value.
 */
export function StackedBar({ label, total, parts, format }) {
  const shown = parts.filter((part) => part.value > 0);
  const text = shown.map((part) => `${part.label} ${format(part.value)}`).join(", ");
  return html`<div class="stacked">
    <div class="stacked-bar" role="img" aria-label="${label}: ${text || "empty"} of ${format(total)}">
      ${shown.map((part) => html`<div key=${part.label} class="stacked-part series-${part.series}"
        style=${{ flexGrow: String(part.value / (total || 1)) }} title="${part.label}: ${format(part.value)}, ${formatPercent(part.value / (total || 1))}"></div>`)}
    </div>
    <ul class="legend">
      ${shown.map((part) => html`<li key=${part.label}><span class="swatch series-${part.series}" aria-hidden="true"></span>
        <span class="legend-label">${part.label}</span> <span class="legend-value">${format(part.value)}</span></li>`)}
    </ul>
  </div>`;
}

/** A share of 0 to 1 as a bar with its number. */
export function ShareBar({ share, text = formatPercent(share) }) {
  return html`<span class="share"><span class="share-track" aria-hidden="true">
    <span class="share-fill" style=${{ width: `${Math.min(100, Math.max(0, share * 100))}%` }}></span></span>
    <span class="share-text">${text}</span></span>`;
}
