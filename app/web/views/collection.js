// One collection: its state, a search, and its records.
import { Confirm } from "../components/dialog.js";
import { IndexState } from "../components/index-state.js";
import { Busy, ErrorNotice } from "../components/message.js";
import { sendJson } from "../lib/api.js";
import { collectionPath, useCollection } from "../lib/collections.js";
import { NONE, formatBytes, formatNumber, formatPercent } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useCanManage, useScope } from "../lib/rights.js";
import { link } from "../lib/router.js";
import { CollectionSearch } from "./collection-search.js";
import { RecordForm } from "./collection-records.js";
import { Facts } from "./model.js";

export function CollectionView({ name }) {
  const { value: collection, error, refresh } = useCollection(name);
  const canSearch = useScope("infer");
  const canWrite = useScope("write");
  const canManage = useCanManage();
  return html`
    <p class="crumbs"><a href=${link("collections")}>Collections</a></p>
    <div class="view-head"><h1>${name}</h1>
      ${collection ? html`<${IndexState} name=${name} index=${collection.index} />
        <span class="muted">${formatNumber(collection.rows)} rows of ${formatNumber(collection.dimensions)} dimensions</span>` : null}
      <span class="spacer"></span>
      ${collection?.is_created && canManage ? html`<${DeleteButton} collection=${collection} />` : null}</div>
    ${error ? html`<${ErrorNotice} error=${error} title=${error.status === 404 ? "There is no such collection" : "The collection could not be read"} />` : null}
    ${collection === null && !error ? html`<${Busy}>Reading ${name}<//>` : null}
    ${collection ? html`
      ${canSearch ? html`<${CollectionSearch} collection=${collection} canWrite=${canWrite} onChange=${refresh} />`
        : html`<section class="panel"><p class="muted">A key with the scope infer can search.</p></section>`}
      <div class="panels panels-fit">
        <section class="panel"><h2>At a glance</h2><${Facts} facts=${factsOf(collection)} /></section>
        ${canWrite ? html`<section class="panel"><h2>Records</h2><${RecordForm} collection=${collection} onChange=${refresh} /></section>` : null}
      </div>` : null}`;
}

function DeleteButton({ collection: { name, rows } }) {
  const [state, setState] = useState({ asks: false, busy: false, error: null });
  const close = () => setState((before) => ({ ...before, asks: false }));
  const remove = async () => {
    setState({ asks: false, busy: true, error: null });
    try {
      await sendJson("DELETE", collectionPath(name));
      location.hash = link("collections");
    } catch (error) {
      setState({ asks: false, busy: false, error });
    }
  };
  return html`<button type="button" class="danger" disabled=${state.busy} onClick=${() => setState({ ...state, asks: true })}>Delete the collection</button>
    ${state.error ? html`<${ErrorNotice} error=${state.error} title="The collection was not deleted" />` : null}
    ${state.asks ? html`<${Confirm} title="Delete the collection ${name}?" action="Delete ${name}" onConfirm=${remove} onClose=${close}>
      <p>Its ${formatNumber(rows)} records and all of its files are gone. Callers get 404 from then on.</p><//>` : null}`;
}

function factsOf({ rows, max_rows: limit, dimensions, metric, model, index, memory_bytes: memory, disk_bytes: disk, metadata_keys: keys }) {
  return [
    ["Rows", limit === null ? formatNumber(rows) : `${formatNumber(rows)} of at most ${formatNumber(limit)}`],
    ["Dimensions", formatNumber(dimensions)], ["Metric", metric], ["Model", model ?? NONE],
    ["Memory", formatBytes(memory)], ["Disk", formatBytes(disk)], ["Metadata", keys.join(", ") || NONE],
    ["Index", indexText(index)], ...(index.reason ? [["Reason", index.reason]] : []),
  ];
}

const INDEX_TEXTS = {
  none: "none: each search compares all rows", building: "is being built; searches compare all rows meanwhile",
  ready: "ready", missed: "not used: searches compare all rows", failed: "failed: searches compare all rows",
};

function indexText({ state, recall, unindexed_rows: newer }) {
  const parts = [INDEX_TEXTS[state] ?? state];
  if (recall !== null) parts.push(`recall ${formatPercent(recall)}`);
  if (newer) parts.push(`${formatNumber(newer)} newer rows outside of it`);
  return parts.join(", ");
}
