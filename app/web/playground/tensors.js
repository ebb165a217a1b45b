// Tensors in, tensors out: a form from the inputs of the model, or the body as JSON.
import { ErrorNotice } from "../components/message.js";
import { html, useMemo, useState } from "../lib/html.js";
import { literal } from "./literals.js";
import { Choice, RunButtons, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { useRun } from "./run.js";
import { TensorInput, newInput, valueOf } from "./tensor-input.js";
import { isPlain } from "./tensor-values.js";
import { Outputs } from "./tensor-view.js";
import { Timing } from "./timing.js";

export function Tensors({ name, model }) {
  const [mode, setMode] = useState("form");
  const [states, setStates] = useState(() => Object.fromEntries(model.inputs.map((spec) => [spec.name, newInput(spec)])));
  const [text, setText] = useState("");
  const { run, start, stop } = useRun();
  const [request, fault] = useMemo(
    () => (mode === "form" ? formRequest(name, model, states) : textRequest(name, text)),
    [mode, name, model, states, text],
  );
  const change = (next) => {
    if (next === "json" && request) setText(literal(request.body, "json"));
    setMode(next);
  };
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <section class="panel" aria-label="Inputs">
      <form class="stack" onSubmit=${submit}>
        <${Choice} label="Editor" options=${[["form", "Form"], ["json", "JSON"]]} value=${mode} onChange=${change} />
        ${mode === "form"
          ? model.inputs.map((spec) => html`<${TensorInput} key=${spec.name} spec=${spec} state=${states[spec.name]}
              onChange=${(state) => setStates((all) => ({ ...all, [spec.name]: state }))} />`)
          : html`<${TextField} label="Body of the request" rows="16" class="pg-code" spellcheck=${false} value=${text} onChange=${setText}
              hint=${fault ? html`<span class="field-error">${fault}</span>` : "inputs, and outputs to return only some"} />`}
        <${RunButtons} phase=${run.phase} onStop=${stop} disabled=${request === null} />
      </form>
    </section>
    <div class="pg-main">
      <section class="panel" aria-label="Outputs" aria-busy=${run.phase === "busy"}>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? html`<${Outputs} outputs=${run.answer.value.outputs} />` : null}
        ${run.answer || run.error ? null : html`<p class="empty">The outputs appear here.</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

/** Return `[request, null]` of the form, or `[null, fault]`. */
function formRequest(name, model, states) {
  const fault = Object.values(states).find((state) => state.fault)?.fault;
  if (fault) return [null, fault];
  const inputs = Object.fromEntries(model.inputs.map((spec) => [spec.name, valueOf(spec, states[spec.name])]));
  const tensors = model.inputs.every((spec) => isPlain(spec.dtype))
    ? { model: name, inputs: model.inputs.map((spec) => ({ name: spec.name, ...inputs[spec.name] })), outputs: model.outputs }
    : null;
  return [{ path: "infer", body: { model_name: name, inputs }, tensors }, null];
}

function textRequest(name, text) {
  try {
    const body = JSON.parse(text);
    if (body === null || typeof body !== "object" || Array.isArray(body)) return [null, "Expected an object."];
    return [{ path: "infer", body: { model_name: name, ...body }, tensors: null }, null];
  } catch (error) {
    return [null, `Expected JSON: ${error.message}.`];
  }
}
