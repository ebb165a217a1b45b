// Continues a prompt, with one model or with two side by side.
import { html, useMemo, useState } from "../lib/html.js";
import { CompareWith, useTexts } from "./columns.js";
import { contextsOf } from "./context-room.js";
import { asSent } from "./generation.js";
import { COMPLETION_OPTIONS, initialValues, limitOf, optionsOf, readOptions, usageOf } from "./generation-options.js";
import { OptionsForm } from "./options-form.js";
import { Field } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { TextResult } from "./text-result.js";
import { TextTiming } from "./timing.js";

const PATH = "v1/completions";

export function Completion({ model: own, name, models }) {
  const contextOf = contextsOf(name, own, models);
  const options = useMemo(() => optionsOf(COMPLETION_OPTIONS, contextOf(name)), [contextOf(name)]);
  const [values, setValues] = useState(() => initialValues(options));
  const [prompt, setPrompt] = useState("A list is");
  const [second, setSecond] = useState(null);
  const { texts, isRunning, start, stop, clear } = useTexts();
  const { members, faults } = readOptions(options, values);
  const sides = [["left", name], ...(second === null ? [] : [["right", second]])];
  const requestOf = (side, model) => ({
    name: side,
    path: PATH,
    body: { model, prompt, ...members, ...usageOf(members) },
    ...limitOf(options, values, contextOf(model)),
  });
  const send = (event) => {
    event.preventDefault();
    if (!isRunning && Object.keys(faults).length === 0) start(sides.map(([side, model]) => requestOf(side, model)));
  };
  const compare = (other) => { clear(); setSecond(other); };
  const last = texts.left;
  return html`<div class="pg-split pg-split-text">
    <section class="panel" aria-label="Completion">
      <form class="stack" onSubmit=${send}>
        <${Field} label="Prompt" render=${(id) => html`<textarea id=${id} rows="4" value=${prompt}
          onInput=${(event) => setPrompt(event.currentTarget.value)}></textarea>`} />
        <div class="row">
          ${isRunning
            ? html`<button type="button" onClick=${stop}>Stop</button>`
            : html`<button type="submit" class="primary">Continue</button>`}
          <span class="spacer"></span>
          <${CompareWith} name=${name} models=${models} second=${second} onChange=${compare} />
        </div>
      </form>
      <div class=${`pg-columns pg-columns-${sides.length}`}>${sides.map(([side, model]) => html`<div key=${side} class="pg-column">
        ${sides.length > 1 ? html`<h3>${model}</h3>` : null}
        ${texts[side] ? html`<${TextResult} text=${texts[side]} />` : html`<p class="empty">The text appears here.</p>`}
      </div>`)}</div>
    </section>
    <div class="pg-aside"><${OptionsForm} groups=${options} values=${values} faults=${faults} onChange=${setValues} /></div>
    <div class="pg-main">
      <${RequestPanel} request=${asSent(requestOf("left", name), last)}
        timing=${last && last.totalMs !== null && !last.error ? html`<${TextTiming} text=${last} />` : null} />
    </div>
  </div>`;
}
