// The phases of a request, one below the other on one scale of time.
import { html } from "../lib/html.js";
import { formatMs } from "../lib/format.js";

const LABELS = {
  decode: "Read and decode", queue: "Queue", compute: "Compute", encode: "Encode and send", other: "Other",
  network: "Network and browser", tokenize: "Tokenize", first_token: "First token", stream: "Stream",
};
// A phase has the same colour everywhere, as in the charts of the overview.
const SERIES = { queue: 1, compute: 2, decode: 4, tokenize: 5, encode: 3, stream: 3, first_token: 5 };

/**
 * `phases`: [{name, durationMs, startMs?, label?}]; without a start each follows the one before. `totalMs`: of the
 * whole; what no phase takes is shown as `rest`, if it is named.
 */
export function Waterfall({ phases, totalMs = null, rest = null }) {
  let end = 0;
  const rows = phases.map((phase) => {
    const startMs = phase.startMs ?? end;
    end = Math.max(end, startMs + phase.durationMs);
    return { ...phase, startMs };
  });
  const total = Math.max(totalMs ?? 0, end);
  if (rest !== null && totalMs !== null && totalMs - end > 0) rows.push({ name: rest, startMs: end, durationMs: totalMs - end });
  const scale = total || 1;
  return html`<table class="waterfall"><caption class="visually-hidden">Phases of the request</caption>
    <thead class="visually-hidden"><tr><th scope="col">Phase</th><th scope="col">Position</th><th scope="col">Duration</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.name}>
      <th scope="row">${row.label ?? LABELS[row.name] ?? row.name}</th>
      <td class="waterfall-lane"><span class="waterfall-bar series-${SERIES[row.name] ?? 6}"
        style=${{ marginLeft: `${(row.startMs / scale) * 100}%`, width: `${(row.durationMs / scale) * 100}%` }}></span></td>
      <td class="number">${formatMs(row.durationMs)}</td></tr>`)}
      <tr class="waterfall-total"><th scope="row">Total</th><td></td><td class="number">${formatMs(total)}</td></tr>
    </tbody></table>`;
}
