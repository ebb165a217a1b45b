// Labels of texts, as bars by falling score.
import { ErrorNotice } from "../components/message.js";
import { html, useState } from "../lib/html.js";
import { percent } from "./numbers.js";
import { Check, RunButtons, ShareBars, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { given, linesOf, useRun } from "./run.js";
import { Timing } from "./timing.js";

export function Classify({ name }) {
  const [text, setText] = useState("This engine runs well.\nThe train was late again.");
  const [topK, setTopK] = useState("");
  const [isWhole, setWhole] = useState(false);
  const { run, start, stop } = useRun();
  const texts = linesOf(text);
  const request = texts.length === 0 ? null : {
    path: "infer",
    body: {
      model_name: name,
      text: texts,
      ...given({ top_k: topK === "" ? undefined : Number(topK), truncate: isWhole ? false : undefined }),
    },
  };
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <section class="panel" aria-label="Texts">
      <form class="stack" onSubmit=${submit}>
        <${TextField} label="Texts, one per line" rows="6" value=${text} onChange=${setText} />
        <div class="pg-option-grid">
          <${TextField} label="Only the best labels" type="number" min="1" placeholder="all" value=${topK} onChange=${setTopK} />
          <${Check} label="Refuse long texts" checked=${isWhole} onChange=${setWhole} hint="instead of cutting them" />
        </div>
        <${RunButtons} phase=${run.phase} onStop=${stop} label="Classify" disabled=${request === null} />
      </form>
    </section>
    <div class="pg-main">
      <section class="panel" aria-label="Labels" aria-busy=${run.phase === "busy"}>
        <h2>Labels</h2>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? run.answer.value.predictions.map((labels, at) => html`<div key=${at} class="pg-prediction">
          <p class="pg-quote">${run.answer.request.body.text[at]}</p>
          <${ShareBars} label=${`Labels of text ${at + 1}`} rows=${labels.map(barOf)} />
        </div>`) : run.error ? null : html`<p class="empty">The labels appear here.</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

/** The first label is the best one. */
const barOf = ({ label, score }, place) => ({ label, share: score, text: percent(score), strong: place === 0 });
