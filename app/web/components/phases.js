// The phases of one finished request, with its sizes and its error.
import { html } from "../lib/html.js";
import { formatBytes, formatMs } from "../lib/format.js";
import { Waterfall } from "./waterfall.js";
import { RequestLink } from "./request-link.js";

const PHASES = ["decode", "queue", "compute", "encode"];

/** `record`: of GET /requests. `linksId`: whether its id links to the view of this request. */
export function Phases({ record, linksId = false }) {
  const phases = PHASES.map((name) => ({ name, durationMs: record[`${name}_ms`] })).filter(({ durationMs }) => durationMs !== null);
  const facts = [
    ["Tenant", record.tenant || null], ["Adapter", record.adapter],
    ["Sizes", `${formatBytes(record.request_bytes)} in, ${formatBytes(record.response_bytes)} out`], ["Rows of the batch", record.batch_rows],
    ["Cache", record.cache_hit === null ? null : record.cache_hit ? "hit" : "miss"],
  ].filter(([, value]) => value !== null && value !== undefined);
  return html`<div class="phases" role="group" aria-label="Phases of ${record.method} ${record.path}, ${formatMs(record.total_ms)}">
    ${record.error ? html`<div class="notice notice-error"><p>${record.error}</p></div>` : null}
    <${Waterfall} phases=${phases} totalMs=${record.total_ms} rest="other" />
    <p class="detail"><span>Request id: ${linksId ? html`<${RequestLink} id=${record.id} />` : html`<code>${record.id}</code>`}</span>
      ${facts.map(([term, value]) => html`<span key=${term}>${term}: <code>${value}</code></span>`)}</p></div>`;
}
