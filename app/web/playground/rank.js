// Texts in the order of their fit to a query, by a cross-encoder or by embeddings.
import { ErrorNotice } from "../components/message.js";
import { html, useState } from "../lib/html.js";
import { Check, RunButtons, ShareBars, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { given, linesOf, useRun } from "./run.js";
import { EXAMPLE_TEXTS } from "./similarity.js";
import { Timing } from "./timing.js";

export function Rank({ name, model }) {
  const [query, setQuery] = useState("Where do engines wait?");
  const [text, setText] = useState(EXAMPLE_TEXTS.join("\n"));
  const [topN, setTopN] = useState("");
  const [isRaw, setRaw] = useState(false);
  const [isWhole, setWhole] = useState(false);
  const { run, start, stop } = useRun();
  const documents = linesOf(text);
  const isClassifier = model.task === "classify";
  const request = query.trim() === "" || documents.length === 0 ? null : {
    path: "v1/rerank",
    body: {
      model: name,
      query,
      documents,
      ...given({
        top_n: topN === "" ? undefined : Number(topN),
        raw_scores: isRaw || undefined,
        truncate: isWhole ? false : undefined,
      }),
    },
  };
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <section class="panel" aria-label="Query and texts">
      <form class="stack" onSubmit=${submit}>
        <${TextField} label="Query" value=${query} onChange=${setQuery} />
        <${TextField} label="Texts, one per line" rows="7" value=${text} onChange=${setText} />
        <details><summary>Options</summary><div class="pg-option-grid">
          <${TextField} label="Only the best" type="number" min="1" placeholder="all" value=${topN} onChange=${setTopN} />
          ${isClassifier
            ? html`<${Check} label="Raw scores" checked=${isRaw} onChange=${setRaw} hint="logits, not through a sigmoid" />`
            : null}
          <${Check} label="Refuse long texts" checked=${isWhole} onChange=${setWhole} hint="instead of cutting them" />
        </div></details>
        <${RunButtons} phase=${run.phase} onStop=${stop} label="Rank" disabled=${request === null} />
      </form>
    </section>
    <div class="pg-main">
      <section class="panel" aria-label="Ranks" aria-busy=${run.phase === "busy"}>
        <h2>Best first</h2>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? html`<${Ranks} answer=${run.answer} />` : null}
        ${run.answer || run.error ? null : html`<p class="empty">The texts appear here, the best first.</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

function Ranks({ answer }) {
  const { results, usage } = answer.value;
  const { documents, raw_scores: isRaw } = answer.request.body;
  const best = Math.max(...results.map((each) => each.relevance_score));
  const worst = Math.min(...results.map((each) => each.relevance_score));
  // Logits have no fixed range: the bars show them within theirs.
  const share = (score) => (isRaw ? (best === worst ? 1 : (score - worst) / (best - worst)) : score);
  return html`
    <${ShareBars} label="Texts, the best first" rows=${results.map(({ index, relevance_score: score }) => ({
      key: index, label: documents[index], share: share(score), text: score.toFixed(3),
    }))} />
    <p class="detail">${usage.prompt_tokens} tokens${isRaw ? " · raw scores: bars from the worst to the best" : ""}</p>`;
}
