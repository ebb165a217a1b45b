// The last requests, live, with the phases of one of them.
import { Busy, Empty } from "../components/message.js";
import { Phases } from "../components/phases.js";
import { RequestLink } from "../components/request-link.js";
import { Scroll } from "../components/scroll.js";
import { NONE, formatBytes, formatMs, formatTime } from "../lib/format.js";
import { html, useId, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { link } from "../lib/router.js";
import { hello, models, requests } from "../lib/server.js";
import { RequestView, Status } from "./request.js";

const STATUSES = [["", "All"], ["ok", "Succeeded"], ["failed", "Failed"], ["4xx", "4xx"], ["5xx", "5xx"]];

export function Requests({ name, query }) {
  return name === null ? html`<${RequestList} query=${query} />` : html`<${RequestView} key=${name} id=${name} />`;
}

function RequestList({ query }) {
  const live = useObservable(requests);
  const known = useObservable(models);
  const [frozen, setFrozen] = useState(null);
  const [open, setOpen] = useState(null);
  const id = useId();
  const list = frozen ?? live;
  const { status = "", model = "" } = query;
  const shown = (list ?? []).filter((record) => matches(record, status, model));
  const names = [...new Set([...(known ?? []).map(({ name }) => name), ...(list ?? []).map((record) => record.model).filter(Boolean), ...(model ? [model] : [])])].sort();
  const filter = (next) => { location.hash = link("requests", null, { status, model, ...next }); };
  return html`
    <div class="view-head"><h1>Requests</h1>${list?.length ? html`<span class="muted">the last ${list.length}, newest first; bodies are never kept</span>` : null}
    </div>
    <form class="panel filters" onSubmit=${(event) => event.preventDefault()} aria-label="Filter">
      <div class="field"><label for="${id}-status">Status</label><select id="${id}-status" value=${status} onChange=${(event) => filter({ status: event.target.value })}>
        ${STATUSES.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select></div>
      <div class="field"><label for="${id}-model">Model</label><select id="${id}-model" value=${model} onChange=${(event) => filter({ model: event.target.value })}>
        <option value="">All</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></div>
      <p class="muted filter-count" role="status">${shown.length === (list?.length ?? 0) ? "" : `${shown.length} of ${list.length} shown`}</p>
      <button type="button" aria-pressed=${frozen !== null} onClick=${() => setFrozen(frozen === null ? live : null)}>${frozen === null ? "Pause" : "Resume"}</button>
    </form>
    <section class="panel">
      ${list === null ? html`<${Busy}>Waiting for the server<//>` : null}
      ${list !== null && !shown.length ? html`<${Empty} title=${list.length ? "No request matches the filter." : "No request yet."}>
        ${list.length ? html`<a href=${link("requests")}>Show all</a>` : html`<a href=${link("playground")}>Try a model</a> to see one here.`}<//>` : null}
      ${shown.length ? html`<${Table} records=${shown} open=${open} onOpen=${setOpen} />` : null}
    </section>`;
}

function matches(record, status, model) {
  const failed = record.status >= 400 || record.code !== null;
  const wanted = { "": true, ok: !failed, failed, "4xx": record.status >= 400 && record.status < 500, "5xx": record.status >= 500 };
  return (wanted[status] ?? true) && (model === "" || record.model === model);
}

function Table({ records, open, onOpen }) {
  const showsTenant = useObservable(hello)?.auth && records.some((record) => record.tenant);
  return html`<${Scroll} label="Requests"><table class="requests-table">
    <thead><tr><th scope="col">Time</th><th scope="col">Status</th><th scope="col">Model</th><th scope="col">Path</th>
      ${showsTenant ? html`<th scope="col" class="wide-cell">Tenant</th>` : null}
      <th scope="col" class="number">Total</th><th scope="col" class="number wide-cell">Queue</th><th scope="col" class="number wide-cell">Compute</th>
      <th scope="col" class="number widest-cell">Request</th><th scope="col" class="number widest-cell">Response</th>
      <th scope="col" class="widest-cell">Id</th></tr></thead>
    <tbody>${records.map((record) => html`<${Row} key=${record.key} record=${record} showsTenant=${showsTenant}
      isOpen=${open === record.key} onToggle=${() => onOpen(open === record.key ? null : record.key)} />`)}</tbody>
  </table><//>`;
}

function Row({ record, showsTenant, isOpen, onToggle }) {
  return html`<tr class="clickable ${isOpen ? "is-open" : ""}" onClick=${onToggle} data-status=${record.status} data-request=${record.id}>
      <td><button type="button" class="plain disclosure" aria-expanded=${isOpen} onClick=${(event) => { event.stopPropagation(); onToggle(); }}>
        <span class="chevron" aria-hidden="true"></span>${formatTime(record.ended_s)}<span class="visually-hidden">, show the phases</span></button></td>
      <td><${Status} record=${record} /></td>
      <td class="cell-model" title=${record.model}><span class="cut">${record.model ?? NONE}</span>${record.version ? html` <span class="muted">v${record.version}</span>` : null}</td>
      <td class="cell-path"><code class="path">${record.method === "POST" ? record.path : `${record.method} ${record.path}`}</code></td>
      ${showsTenant ? html`<td class="wide-cell">${record.tenant || NONE}</td>` : null}
      <td class="number">${formatMs(record.total_ms)}</td><td class="number wide-cell">${formatMs(record.queue_ms)}</td>
      <td class="number wide-cell">${formatMs(record.compute_ms)}</td><td class="number widest-cell">${formatBytes(record.request_bytes)}</td>
      <td class="number widest-cell">${formatBytes(record.response_bytes)}</td>
      <td class="widest-cell cell-id"><${RequestLink} id=${record.id} short /></td></tr>
    ${isOpen ? html`<tr class="opened"><td colspan=${showsTenant ? 11 : 10}><${Phases} record=${record} linksId /></td></tr>` : null}`;
}
