// The collections of the server, and one of them.
import { IndexState } from "../components/index-state.js";
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { Scroll } from "../components/scroll.js";
import { useCollections } from "../lib/collections.js";
import { NONE, formatBytes, formatCount, formatNumber } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useCanManage } from "../lib/rights.js";
import { link } from "../lib/router.js";
import { CreateDialog } from "./collection-create.js";
import { CollectionView } from "./collection.js";

export function Collections({ name }) {
  return name === null ? html`<${CollectionList} />` : html`<${CollectionView} key=${name} name=${name} />`;
}

function CollectionList() {
  const { value: list, error } = useCollections();
  const [creates, setCreates] = useState(false);
  const canManage = useCanManage();
  return html`
    <div class="view-head"><h1>Collections</h1>
      ${list?.length ? html`<span class="muted">${list.length} with ${formatCount(sum(list, "rows"))} rows</span>` : null}
      <span class="spacer"></span>
      ${canManage ? html`<button type="button" class="primary" onClick=${() => setCreates(true)}>Create a collection</button>` : null}</div>
    ${error ? html`<${ErrorNotice} error=${error} title="The collections could not be read" />` : null}
    ${list === null && !error ? html`<${Busy}>Reading the collections<//>` : null}
    ${list?.length === 0 ? html`<div class="panel"><${Empty} title="There is no collection.">
      ${canManage ? "Create one, or add an entry" : "A key with the scope manage can create one, or an entry"} <code>[[collections]]</code>
      ${canManage ? " to the configuration" : " of the configuration"}. It keeps embeddings with texts and metadata.<//></div>` : null}
    ${list?.length ? html`<section class="panel"><${Scroll} label="Collections"><table class="cards-table" role="table">
      <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Name</th><th role="columnheader" scope="col">Index</th>
        <th role="columnheader" scope="col">Model</th><th role="columnheader" scope="col">Metric</th>
        ${NUMBERS.map(([label]) => html`<th key=${label} role="columnheader" scope="col" class="number">${label}</th>`)}</tr></thead>
      <tbody role="rowgroup">${list.map((each) => html`<${Row} key=${each.name} collection=${each} />`)}</tbody></table><//></section>` : null}
    ${creates ? html`<${CreateDialog} onClose=${() => setCreates(false)} />` : null}`;
}

const NUMBERS = [
  ["Rows", ({ rows }) => formatNumber(rows)],
  ["Dimensions", ({ dimensions }) => formatNumber(dimensions)],
  ["Memory", ({ memory_bytes: bytes }) => formatBytes(bytes)],
  ["Disk", ({ disk_bytes: bytes }) => formatBytes(bytes)],
];

function Row({ collection }) {
  return html`<tr role="row" data-collection=${collection.name}>
    <th role="rowheader" scope="row" class="strong name"><a href=${link("collections", collection.name)}>${collection.name}</a></th>
    <td role="cell" class="cell-state"><${IndexState} name=${collection.name} index=${collection.index} /></td>
    <td role="cell" data-label="Model">${collection.model ?? NONE}</td><td role="cell" data-label="Metric">${collection.metric}</td>
    ${NUMBERS.map(([label, text]) => html`<td key=${label} role="cell" class="number" data-label=${label}>${text(collection)}</td>`)}</tr>`;
}

const sum = (list, field) => list.reduce((total, each) => total + each[field], 0);
