// Embeddings of several texts: how similar each pair is, and which texts are nearest to one of them.
import { ErrorNotice } from "../components/message.js";
import { formatCount } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { Choice, RunButtons, ShareBars, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { given, linesOf, useRun } from "./run.js";
import { cosines, denseVectors } from "./vectors.js";
import { Timing } from "./timing.js";

export const EXAMPLE_TEXTS = [
  "A roundhouse is where engines wait.",
  "Locomotives are kept in a shed.",
  "Bread rises overnight.",
  "The dough needs flour, water and yeast.",
];
/** More texts make a matrix that no screen shows. */
const MAX_TEXTS = 64;
const FLAGS = [["", "default"], ["true", "yes"], ["false", "no"]];
const flag = (value) => (value === "" ? undefined : value === "true");

export function Similarity({ model, name }) {
  const isSparse = model.vectors === "sparse";
  const [text, setText] = useState(EXAMPLE_TEXTS.join("\n"));
  const [options, setOptions] = useState({ dimensions: "", normalize: "", truncate: "", topK: "" });
  const { run, start, stop } = useRun();
  const texts = linesOf(text);
  const fault = faultOf(texts);
  const count = (value) => (value === "" ? undefined : Number(value));
  const truncate = flag(options.truncate);
  const sparse = () => ({ model_name: name, text: texts, ...given({ top_k: count(options.topK), truncate }) });
  const dense = () => ({
    model: name,
    input: texts,
    ...given({ dimensions: count(options.dimensions), normalize: flag(options.normalize), truncate }),
  });
  const request = fault ? null : isSparse ? { path: "infer", body: sparse() } : { path: "v1/embeddings", body: dense() };
  const set = (option) => (value) => setOptions({ ...options, [option]: value });
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <section class="panel" aria-label="Texts">
      <form class="stack" onSubmit=${submit}>
        <${TextField} label="Texts, one per line" rows="7" value=${text} onChange=${setText}
          hint=${fault ? html`<span class="field-error">${fault}</span>` : `${texts.length} ${texts.length === 1 ? "text" : "texts"}`} />
        <details><summary>Options</summary><div class="pg-option-grid">
          ${isSparse ? html`<${TextField} label="Elements" hint="of a vector, the highest" type="number" min="1" placeholder="all"
            value=${options.topK} onChange=${set("topK")} />` : html`<${TextField} label="Dimensions" hint="of models trained for it"
            type="number" min="1" placeholder="default" value=${options.dimensions} onChange=${set("dimensions")} />`}
          ${[...(isSparse ? [] : [["normalize", "Normalize"]]), ["truncate", "Cut long texts"]].map(([option, label]) => html`<div key=${option} class="pg-field">
            <span class="pg-label">${label}</span>
            <${Choice} label=${label} options=${FLAGS} value=${options[option]} onChange=${set(option)} /></div>`)}
        </div></details>
        <${RunButtons} phase=${run.phase} onStop=${stop} label="Compare" disabled=${fault !== null} />
      </form>
    </section>
    <div class="pg-main">
      <section class="panel" aria-label="Similarities" aria-busy=${run.phase === "busy"}>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? html`<${Result} answer=${run.answer} />` : null}
        ${run.answer || run.error ? null : html`<p class="empty">The similarities appear here.</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

function faultOf(texts) {
  if (texts.length === 0) return "Write at least one text.";
  return texts.length > MAX_TEXTS ? `At most ${MAX_TEXTS} texts are compared.` : null;
}

function Result({ answer }) {
  if (answer.value.sparse_embeddings) return html`<${SparseResult} answer=${answer} />`;
  const { data, usage } = answer.value;
  const texts = answer.request.body.input;
  return html`
    <${Similarities} texts=${texts} vectors=${data.map((each) => each.embedding)} />
    <p class="detail">${data.length} vectors of ${data[0].embedding.length} numbers · ${formatCount(usage.prompt_tokens)} tokens</p>`;
}

function SparseResult({ answer }) {
  const { sparse_embeddings: sparse, tokens } = answer.value;
  const longest = Math.max(...sparse.map(({ indices }) => indices.length));
  return html`
    <${Similarities} texts=${answer.request.body.text} vectors=${denseVectors(sparse)} />
    <p class="detail">${sparse.length} sparse vectors of up to ${longest} elements · ${formatCount(tokens)} tokens</p>`;
}

/** The matrix of cosines, and the texts by their similarity to a chosen one. `kind`: what the texts name. */
export function Similarities({ texts, vectors, kind = "text" }) {
  const [chosen, setChosen] = useState(0);
  const matrix = cosines(vectors);
  const from = Math.min(chosen, texts.length - 1);
  const nearest = matrix[from].map((value, at) => ({ value, at })).filter(({ at }) => at !== from).sort((a, b) => b.value - a.value);
  return html`
    <h2>Cosine similarity</h2>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Matrix of similarities"><table class="pg-matrix">
      <thead><tr><th scope="col"><span class="visually-hidden">Text</span></th>
        ${texts.map((each, at) => html`<th key=${at} scope="col" title=${each}>${at + 1}</th>`)}</tr></thead>
      <tbody>${matrix.map((row, at) => html`<tr key=${at}>
        <th scope="row"><button type="button" class="plain pg-row-text" aria-pressed=${at === from ? "true" : "false"} title=${texts[at]}
          onClick=${() => setChosen(at)}><span>${at + 1}</span><span class="pg-cut">${texts[at]}</span></button></th>
        ${row.map((value, column) => html`<td key=${column} title=${`${texts[at]} / ${texts[column]}`}
          style=${{ "--share": Math.max(0, value).toFixed(3) }}>${value.toFixed(2)}</td>`)}
      </tr>`)}</tbody></table></div>
    ${nearest.length ? html`<h2 class="pg-later">Nearest to ${kind} ${from + 1}</h2>
      <p class="detail pg-quote">${texts[from]}</p>
      <${ShareBars} label=${`Nearest to ${kind} ${from + 1}, by similarity`}
        rows=${nearest.map(({ value, at }) => ({ key: at, label: texts[at], share: value, text: value.toFixed(3) }))} />` : null}`;
}
