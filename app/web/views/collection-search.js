// Search of a collection: by text where a model embeds it, else by a vector; or by the vector of a record.
import { Confirm } from "../components/dialog.js";
import { Empty, ErrorNotice } from "../components/message.js";
import { RequestLink, requestIdOf } from "../components/request-link.js";
import { Scroll } from "../components/scroll.js";
import { call, getJson, sendJson } from "../lib/api.js";
import { collectionPath, parseVector, recordPath } from "../lib/collections.js";
import { NONE, formatMs } from "../lib/format.js";
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";

const IDLE = { busy: false, answer: null, error: null };

export function CollectionSearch({ collection, canWrite, onChange }) {
  const [query, setQuery] = useState("");
  const [most, setMost] = useState("10");
  const [filter, setFilter] = useState("");
  const [run, setRun] = useState(IDLE);
  const [deleted, setDeleted] = useState(null);
  const control = useRef(null);
  const id = useId();
  useEffect(() => () => control.current?.abort(), []);
  const byText = collection.model !== null;

  /** `find`: returns the query, a text or a vector, and may take a while. */
  const search = async (find) => {
    control.current?.abort();
    const { signal } = (control.current = new AbortController());
    setRun((before) => ({ ...before, busy: true, error: null }));
    try {
      const body = { query: await find(signal), top_k: Number(most) || 10, ...(filter.trim() === "" ? {} : { filter: parsed(filter) }) };
      const answer = await call("POST", collectionPath(collection.name, "/search"), { body, signal });
      setRun({ busy: false, answer, error: null });
    } catch (error) {
      if (!signal.aborted) setRun((before) => ({ ...before, busy: false, error }));
    }
  };
  const send = (event) => {
    event.preventDefault();
    search(() => (byText ? query : vectorOf(query, collection.dimensions)));
  };
  const findSimilar = (record) => search(async (signal) => (await getJson(recordPath(collection.name, record), { signal })).vector);
  const remove = async (record) => {
    try {
      await sendJson("POST", collectionPath(collection.name, "/delete"), { ids: [record] });
      setRun((before) => ({ ...before, answer: without(before.answer, record) }));
      onChange();
    } catch (error) {
      setRun((before) => ({ ...before, error }));
    }
  };
  return html`<section class="panel"><h2>Search</h2>
    <form class="search-form" role="search" aria-label="Search ${collection.name}" onSubmit=${send}>
      <div class="field search-query"><label for="${id}-query">${byText ? "Text" : `Vector of ${collection.dimensions} numbers`}</label>
        <input id="${id}-query" required spellcheck=${byText} class=${byText ? "" : "mono"} value=${query} onInput=${(event) => setQuery(event.target.value)}
          placeholder=${byText ? "Where do engines wait?" : "0.1, 0.2, …"} /></div>
      <div class="field search-filter"><label for="${id}-filter">Filter as JSON <span class="muted">(optional)</span></label>
        <input id="${id}-filter" class="mono" spellcheck=${false} value=${filter} onInput=${(event) => setFilter(event.target.value)}
          placeholder='{"year": {"gte": 2020}}' /></div>
      <div class="field"><label for="${id}-most">Results</label>
        <input id="${id}-most" class="short" type="number" min="1" max="10000" value=${most} onInput=${(event) => setMost(event.target.value)} /></div>
      <div class="row">${byText ? null : html`<button type="button" onClick=${() => setQuery(randomVector(collection.dimensions))}>Random vector</button>`}
        <button type="submit" class="primary" disabled=${run.busy}>Search</button></div>
    </form>
    ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
    ${run.answer ? html`<${Hits} answer=${run.answer} canWrite=${canWrite} busy=${run.busy} onSimilar=${findSimilar} onDelete=${setDeleted} />` : null}
    ${deleted !== null ? html`<${Confirm} title="Delete the record ${deleted}?" action="Delete" onConfirm=${() => remove(deleted)} onClose=${() => setDeleted(null)}>
      <p>The record is gone with its text and metadata. No search finds it any more.</p><//>` : null}
  </section>`;
}

function Hits({ answer, canWrite, busy, onSimilar, onDelete }) {
  const { results, latency_ms: latency } = answer.value;
  const requestId = requestIdOf(answer);
  return html`<p class="detail search-summary" role="status">${results.length} ${results.length === 1 ? "result" : "results"} in ${formatMs(latency)}
      ${requestId ? html` · request <${RequestLink} id=${requestId} />` : null}</p>
    ${results.length ? html`<${HitTable} hits=${results} canWrite=${canWrite} busy=${busy} onSimilar=${onSimilar} onDelete=${onDelete} />`
      : html`<${Empty} title="No record matches." />`}`;
}

// Roles are said again, as a table that is laid out as cards loses them in some browsers.
function HitTable({ hits, canWrite, busy, onSimilar, onDelete }) {
  const hasTexts = hits.some(({ text }) => text);
  const hasMetadata = hits.some(({ metadata }) => Object.keys(metadata ?? {}).length);
  return html`<${Scroll} label="Results"><table class="hits" role="table">
    <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col" class="number">Score</th><th role="columnheader" scope="col">Id</th>
      ${hasTexts ? html`<th role="columnheader" scope="col">Text</th>` : null}
      ${hasMetadata ? html`<th role="columnheader" scope="col">Metadata</th>` : null}
      <th role="columnheader" scope="col"><span class="visually-hidden">Orders</span></th></tr></thead>
    <tbody role="rowgroup">${hits.map((hit) => html`<tr key=${hit.id} role="row" data-record=${hit.id}>
      <td role="cell" class="number">${hit.score.toFixed(4)}</td>
      <td role="cell" class="cell-record"><code class="cut" title=${hit.id}>${hit.id}</code></td>
      ${hasTexts ? html`<td role="cell" class="cell-text"><span class="clamped" title=${hit.text}>${hit.text ?? NONE}</span></td>` : null}
      ${hasMetadata ? html`<td role="cell"><span class="tags">${Object.entries(hit.metadata ?? {}).map(([key, value]) => html`<span key=${key} class="tag">${key}: ${shown(value)}</span>`)}</span></td>` : null}
      <td role="cell" class="cell-buttons"><button type="button" disabled=${busy} aria-label="Find records similar to ${hit.id}" onClick=${() => onSimilar(hit.id)}>Similar</button>
        ${canWrite ? html`<button type="button" class="danger" aria-label="Delete ${hit.id}" onClick=${() => onDelete(hit.id)}>Delete</button>` : null}</td></tr>`)}
    </tbody></table><//>`;
}

function vectorOf(text, dimensions) {
  const vector = parseVector(text);
  if (vector === null) throw { message: `query: expected ${dimensions} numbers, got another text`, advice: "write numbers between commas" };
  return vector;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (fault) {
    throw { message: `filter: expected JSON, got another text (${fault.message})` };
  }
}

function randomVector(dimensions) {
  return Array.from({ length: dimensions }, () => (Math.random() * 2 - 1).toFixed(3)).join(", ");
}

function without(answer, record) {
  return { ...answer, value: { ...answer.value, results: answer.value.results.filter(({ id }) => id !== record) } };
}

const shown = (value) => (Array.isArray(value) ? value.join(", ") : String(value));
