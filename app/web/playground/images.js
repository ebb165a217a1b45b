// Pictures to labels as bars, or to vectors whose similarities are a matrix.
import { ErrorNotice } from "../components/message.js";
import { modelPath } from "../lib/api.js";
import { html, useState } from "../lib/html.js";
import { ImageField, Thumbnail, Thumbnails } from "./image-files.js";
import { percent } from "./numbers.js";
import { RunButtons, ShareBars, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { given, useRun } from "./run.js";
import { Similarities } from "./similarity.js";
import { Timing } from "./timing.js";

/** More pictures make lists that no screen shows. */
const MAX_IMAGES = 16;
const ANSWERS = {
  classify: { title: "Labels", empty: "The labels appear here.", button: "Classify" },
  embed: { title: "Vectors", empty: "The similarities appear here.", button: "Compare" },
};

export function Images({ model, name }) {
  const [files, setFiles] = useState([]);
  const [topK, setTopK] = useState("");
  const { run, start, stop } = useRun();
  const texts = ANSWERS[model.task];
  const isClassifier = model.task === "classify";
  const form = { field: "image", files, options: given({ top_k: isClassifier && topK !== "" ? Number(topK) : undefined }) };
  const request = files.length === 0 ? null : { path: modelPath(name, "/infer"), form };
  const add = (more) => setFiles((all) => [...all, ...more].slice(0, MAX_IMAGES));
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <section class="panel" aria-label="Chosen pictures">
      <form class="stack" onSubmit=${submit}>
        <${ImageField} label="Pictures" onAdd=${add} />
        ${files.length ? html`<${Thumbnails} files=${files} onRemove=${(file) => setFiles(files.filter((each) => each !== file))} />` : null}
        ${isClassifier ? html`<${TextField} label="Only the best labels" type="number" min="1" placeholder="all"
          value=${topK} onChange=${setTopK} />` : null}
        ${model.image.width ? html`<p class="detail">The server scales each picture to ${model.image.width} × ${model.image.height} pixels.</p>` : null}
        <${RunButtons} phase=${run.phase} onStop=${stop} label=${texts.button} disabled=${request === null} />
      </form>
    </section>
    <div class="pg-main">
      <section class="panel" aria-label=${texts.title} aria-busy=${run.phase === "busy"}>
        ${isClassifier || !run.answer ? html`<h2>${texts.title}</h2>` : null}
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? html`<${Answer} answer=${run.answer} />` : run.error ? null : html`<p class="empty">${texts.empty}</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

function Answer({ answer }) {
  const { predictions, embeddings } = answer.value;
  const { files } = answer.request.form;
  if (embeddings) {
    return html`<${Similarities} texts=${files.map((file) => file.name)} vectors=${embeddings} kind="picture" />
      <p class="detail">${embeddings.length} vectors of ${embeddings[0].length} numbers</p>`;
  }
  return predictions.map((labels, at) => html`<div key=${at} class="pg-prediction pg-pictured">
    <${Thumbnail} file=${files[at]} />
    <${ShareBars} label=${`Labels of ${files[at].name}`} rows=${labels.map(barOf)} />
  </div>`);
}

/** The first label is the best one. */
const barOf = ({ label, score }, place) => ({ label, share: score, text: percent(score), strong: place === 0 });
