// Embeddings of texts, from the server and from the page.
import { html, useState } from "../lib/html.js";
import { RunButtons, TextField } from "../playground/parts.js";
import { linesOf } from "../playground/run.js";
import { EXAMPLE_TEXTS, Similarities } from "../playground/similarity.js";
import { cosine } from "../playground/vectors.js";
import { BothAnswers, useBoth } from "./both.js";

export function BothTexts({ description, name, encoder }) {
  const [text, setText] = useState(EXAMPLE_TEXTS.join("\n"));
  const [both, run] = useBoth();
  const texts = linesOf(text);
  const submit = (event) => {
    event.preventDefault();
    const request = { path: "v1/embeddings", body: { model: name, input: texts } };
    if (texts.length > 0 && both.phase !== "busy") run(request, () => encoder.encode(texts));
  };
  const shown = both.request?.body.input;
  const vectors = both.page && { server: both.server.value.data.map((each) => each.embedding), page: both.page.value };
  return html`
    <section class="panel" aria-label="Texts"><form class="stack" onSubmit=${submit}>
      <${TextField} label="Texts, one per line" rows="5" value=${text} onChange=${setText} />
      <${RunButtons} phase="idle" label="Run both" disabled=${texts.length === 0 || both.phase === "busy"} />
    </form></section>
    <section class="panel" aria-label="Both answers">
      <${BothAnswers} both=${both} empty="Both answers appear here." verdict=${vectors && verdictOf(vectors, description.quantized)}
        render=${(side) => html`<${Similarities} texts=${shown} vectors=${vectors[side]} />`} />
    </section>`;
}

function verdictOf({ server, page }, isQuantized) {
  const least = Math.min(...server.map((vector, at) => cosine(vector, page[at])));
  // int8 rounds by the range of a whole batch, and the server forms other batches.
  const why = isQuantized && server.length > 1 ? " An int8 model answers a batch a little differently than its texts alone." : "";
  return `Vectors of the same text have a cosine of at least ${least.toFixed(6)}.${why}`;
}
