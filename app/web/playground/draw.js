// Draw a digit and see the probabilities move.
import { ErrorNotice } from "../components/message.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { DrawPad, ImagePreview, NO_DRAWING, imageOf, isEmpty } from "./draw-pad.js";
import { latestOnly } from "./latest.js";
import { percent } from "./numbers.js";
import { ShareBars } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { useRun } from "./run.js";
import { Timing } from "./timing.js";

/** Return the request for the probabilities of an image of 64 grey values. */
export function digitRequest(name, model, image) {
  const input = model.inputs[0];
  const data = { shape: [1, 64], dtype: input.dtype, data: image };
  return {
    path: "infer",
    body: { model_name: name, inputs: { [input.name]: data } },
    tensors: { model: name, inputs: [{ name: input.name, ...data }], outputs: model.outputs },
  };
}

/** Return `{probabilities, label}` of the outputs of a classifier of digits: ten shares, and the digit. */
export function readDigit(outputs) {
  const values = Object.values(outputs);
  const map = values.find((value) => value.dtype.startsWith("sequence(map"))?.data[0];
  const shares = map ?? values.find((value) => value.dtype.startsWith("float"))?.data.flat(Infinity);
  const probabilities = Array.from({ length: 10 }, (_, digit) => shares?.[digit] ?? 0);
  return { probabilities, label: probabilities.indexOf(Math.max(...probabilities)) };
}

export function Draw({ name, model }) {
  const [drawing, setDrawing] = useState(NO_DRAWING);
  const image = useMemo(() => imageOf(drawing), [drawing]);
  const request = useMemo(() => digitRequest(name, model, image), [name, model, image]);
  const { run, start } = useRun();
  // Moves of the pen are faster than answers: one request at a time, always for the newest image.
  const sender = useRef(null);
  sender.current ??= latestOnly((each) => start(each));
  useEffect(() => { if (!isEmpty(drawing)) sender.current(request); }, [request]);
  const result = run.answer && !isEmpty(drawing) ? readDigit(run.answer.value.outputs) : null;
  const spoken = result ? `${name} reads ${result.label}, ${percent(result.probabilities[result.label])}` : "";
  return html`<div class="pg-split pg-split-draw">
    <section class="panel" aria-label="Drawing">
      <h2>Draw a digit</h2>
      <${DrawPad} drawing=${drawing} onChange=${setDrawing} />
      <${ImagePreview} image=${image} />
    </section>
    <div class="pg-main">
      <section class="panel" aria-label="Probabilities">
        <h2>Probabilities</h2>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        <${DigitBars} result=${result} />
        <p class="visually-hidden" role="status">${spoken}</p>
      </section>
      <${RequestPanel} request=${request} timing=${result && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

/** Ten bars; all empty without a result. */
export function DigitBars({ result, label = "Probability of each digit" }) {
  return html`<div class="pg-digits"><${ShareBars} label=${label} rows=${Array.from({ length: 10 }, (_, digit) => ({
    label: String(digit),
    share: result?.probabilities[digit] ?? 0,
    text: result ? percent(result.probabilities[digit]) : "–",
    strong: result?.label === digit,
  }))} /></div>`;
}
