// The request with an id: its phases, as long as the server or this page keeps it.
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { Phases } from "../components/phases.js";
import { getJson } from "../lib/api.js";
import { NONE, formatMs, formatTime } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { onKey } from "../lib/key.js";
import { useObservable } from "../lib/observable.js";
import { link } from "../lib/router.js";
import { requests } from "../lib/server.js";

export function RequestView({ id }) {
  const { found, error } = useRequests(id);
  return html`
    <p class="crumbs"><a href=${link("requests")}>Requests</a></p>
    <div class="view-head"><h1>Request ${id}</h1></div>
    ${error ? html`<${ErrorNotice} error=${error} title="The request could not be read" />` : null}
    ${found === null && !error ? html`<${Busy}>Reading the request<//>` : null}
    ${found?.length === 0 && !error ? html`<div class="panel"><${Empty} title="The server keeps no request with this id.">
      It keeps the last 200 inference requests of each tenant. A request appears here when it has ended.<//></div>` : null}
    ${(found ?? []).map((record) => html`<section key=${record.key} class="panel" data-request=${record.id}>
      <h2>${record.method} <code>${record.path}</code></h2>
      <p class="row request-facts"><${Status} record=${record} />
        <span>${record.model === null ? NONE : html`<a href=${link("models", record.model)}>${record.model}</a>`}
          ${record.version ? html` <span class="muted">v${record.version}</span>` : null}</span>
        <span class="muted">ended at ${formatTime(record.ended_s)}, after ${formatMs(record.total_ms)}</span></p>
      <${Phases} record=${record} /></section>`)}`;
}

/** Return {found, error}: requests with this id that the server keeps, and those that end while the page is open. */
function useRequests(id) {
  const live = useObservable(requests);
  const [kept, setKept] = useState({ found: null, error: null });
  useEffect(() => {
    let control = new AbortController();
    const read = async () => {
      control.abort();
      const current = (control = new AbortController());
      try {
        const body = await getJson(`requests?${new URLSearchParams({ id })}`, { signal: current.signal });
        setKept({ found: body.requests, error: null });
      } catch (error) {
        if (!current.signal.aborted) setKept({ found: null, error });
      }
    };
    const end = onKey(read);
    read();
    return () => { end(); control.abort(); };
  }, [id]);
  const own = (live ?? []).filter((record) => record.id === id);
  if (kept.found === null) return own.length ? { found: own, error: null } : kept;
  const known = new Set(kept.found.map(({ key }) => key));
  return { found: [...own.filter(({ key }) => !known.has(key)), ...kept.found], error: null };
}

export function Status({ record }) {
  const failed = record.status >= 400 || record.code !== null;
  return html`<span class="status-code ${failed ? "status-bad" : "status-good"}">${record.status}</span>
    ${record.code ? html` <span class="detail">${record.code}</span>` : null}`;
}
