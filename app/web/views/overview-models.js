// The table of models with their live numbers. On a narrow screen each row becomes a card.
import { Busy, Empty } from "../components/message.js";
import { Scroll } from "../components/scroll.js";
import { State } from "../components/state.js";
import { NONE, formatBytes, formatCount, formatMs, formatNumber, formatPercent, formatRate } from "../lib/format.js";
import { html } from "../lib/html.js";
import { link } from "../lib/router.js";

const COLUMNS = [
  ["Requests", (live) => formatRate(live.requests_per_s)],
  ["p50", (live) => formatMs(live.p50_ms)],
  ["p99", (live) => formatMs(live.p99_ms)],
  ["Batch", (live) => formatNumber(live.batch_rows)],
  ["Queue", (live) => formatCount(live.queue)],
  ["In progress", (live) => formatCount(live.inflight)],
  ["Tokens", (live, model) => (model.generates ? formatRate(live.tokens_per_s) : NONE)],
];

// Roles are said again, as a table that is laid out as cards loses them in some browsers.
export function ModelTable({ models, live }) {
  if (models === null) return html`<${Busy} />`;
  if (!models.length) return html`<${Empty} title="No model is registered.">
    <a href=${link("models")}>Register one</a>, or add an entry to the configuration.<//>`;
  return html`<${Scroll} label="Models"><table class="models-table" role="table">
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Model</th><th role="columnheader" scope="col">State</th>
      <th role="columnheader" scope="col">Version</th>
      ${COLUMNS.map(([label]) => html`<th key=${label} role="columnheader" scope="col" class="number">${label}</th>`)}
      <th role="columnheader" scope="col" class="number">Memory</th></tr></thead>
    <tbody role="rowgroup">${models.map((model) => html`<${Row} key=${model.name} model=${model} live=${live?.[model.name] ?? {}} />`)}</tbody>
  </table><//>`;
}

function Row({ model, live }) {
  return html`<tr role="row" data-model=${model.name}>
    <th role="rowheader" scope="row" class="strong name"><a href=${link("models", model.name)}>${model.name}</a></th>
    <td role="cell" class="cell-state"><${State} state=${model.state} reason=${model.reason} /></td>
    <td role="cell" class="cell-version" data-label="Version">${model.active_version}${shares(model, live)}</td>
    ${COLUMNS.map(([label, text]) => html`<td key=${label} role="cell" class="number" data-label=${label}>${text(live, model)}</td>`)}
    <td role="cell" class="number" data-label="Memory">${formatBytes(model.memory_bytes)}</td></tr>`;
}

/** Shares of the traffic: as measured if several versions answered, else as set. */
function shares(model, live) {
  const rates = Object.entries(live.versions ?? {});
  const total = rates.reduce((sum, [, rate]) => sum + rate, 0);
  const tags = total > 0 && rates.length > 1
    ? rates.map(([version, rate]) => `${version}: ${formatPercent(rate / total, 0)}`)
    : model.canary ? [`canary ${model.canary.version}: ${formatPercent(model.canary.percent / 100)}`] : [];
  if (model.shadow) tags.push(`shadow ${model.shadow.version}`);
  return tags.map((tag) => html`${" "}<span key=${tag} class="tag">${tag}</span>`);
}
