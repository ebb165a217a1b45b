// A drawn digit, read by the server and by the page.
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { DigitBars, digitRequest, readDigit } from "../playground/draw.js";
import { DrawPad, NO_DRAWING, imageOf, isEmpty } from "../playground/draw-pad.js";
import { latestOnly } from "../playground/latest.js";
import { largestDifference } from "../playground/vectors.js";
import { BothAnswers, useBoth } from "./both.js";

export function BothDigits({ description, name, model }) {
  const [drawing, setDrawing] = useState(NO_DRAWING);
  const image = useMemo(() => imageOf(drawing), [drawing]);
  const request = useMemo(() => digitRequest(name, description, image), [name, description, image]);
  const [both, run] = useBoth();
  const sender = useRef(null);
  sender.current ??= latestOnly((each) => run(each, () => model.run(each.body.inputs)));
  useEffect(() => { if (!isEmpty(drawing)) sender.current(request); }, [request]);
  const results = both.page && { server: readDigit(both.server.value.outputs), page: readDigit(both.page.value) };
  return html`<div class="pg-split pg-split-draw">
    <section class="panel" aria-label="Drawing"><h2>Draw a digit</h2><${DrawPad} drawing=${drawing} onChange=${setDrawing} /></section>
    <section class="panel" aria-label="Both answers"><h2>Probabilities</h2>
      <${BothAnswers} both=${both} empty="Draw a digit: both answers appear here."
        verdict=${results && verdictOf(results)}
        render=${(side) => html`<${DigitBars} result=${results[side]} label=${`Probabilities, ${side}`} />`} />
    </section>
  </div>`;
}

function verdictOf({ server, page }) {
  const difference = largestDifference(server.probabilities, page.probabilities);
  const what = server.label === page.label ? `Both read ${server.label}` : `The server reads ${server.label}, the page ${page.label}`;
  return `${what}. The probabilities differ by at most ${difference === 0 ? "0" : difference.toExponential(1)}.`;
}
