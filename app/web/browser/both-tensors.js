// Tensors of any model, through the server and through the page.
import { html, useState } from "../lib/html.js";
import { RunButtons } from "../playground/parts.js";
import { TensorInput, newInput, valueOf } from "../playground/tensor-input.js";
import { Outputs } from "../playground/tensor-view.js";
import { largestDifference } from "../playground/vectors.js";
import { BothAnswers, useBoth } from "./both.js";

export function BothTensors({ description, name, model }) {
  const [states, setStates] = useState(() => Object.fromEntries(description.inputs.map((spec) => [spec.name, newInput(spec)])));
  const [both, run] = useBoth();
  const isValid = Object.values(states).every((state) => !state.fault);
  const submit = (event) => {
    event.preventDefault();
    const inputs = Object.fromEntries(description.inputs.map((spec) => [spec.name, valueOf(spec, states[spec.name])]));
    if (isValid) run({ path: "infer", body: { model_name: name, inputs } }, () => model.run(inputs));
  };
  const outputs = both.page && { server: both.server.value.outputs, page: plainOutputs(both.page.value) };
  return html`
    <section class="panel" aria-label="Inputs"><form class="stack" onSubmit=${submit}>
      ${description.inputs.map((spec) => html`<${TensorInput} key=${spec.name} spec=${spec} state=${states[spec.name]}
        onChange=${(state) => setStates((all) => ({ ...all, [spec.name]: state }))} />`)}
      <${RunButtons} phase="idle" label="Run both" disabled=${!isValid || both.phase === "busy"} />
    </form></section>
    <section class="panel" aria-label="Both answers">
      <${BothAnswers} both=${both} empty="Both answers appear here." verdict=${outputs && verdictOf(outputs)}
        render=${(side) => html`<${Outputs} outputs=${outputs[side]} />`} />
    </section>`;
}

/** Return outputs with plain arrays, as JSON has them. */
function plainOutputs(outputs) {
  return Object.fromEntries(Object.entries(outputs).map(([name, value]) => [name, { ...value, data: Array.from(value.data, plain) }]));
}

const plain = (value) => (typeof value === "bigint" ? Number(value) : value);

function verdictOf({ server, page }) {
  const numeric = Object.keys(server).filter((name) => page[name] && !server[name].dtype.startsWith("sequence"));
  const differences = numeric.map((name) => largestDifference([server[name].data].flat(Infinity), page[name].data));
  return `The outputs differ by at most ${Math.max(0, ...differences).toExponential(1)}.`;
}
