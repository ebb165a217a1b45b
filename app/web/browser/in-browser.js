// The same model in this page and on the server: one input, both answers, both times.
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { drawsDigits } from "../lib/descriptions.js";
import { formatBytes, formatDuration } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { openModel } from "./browser-model.js";
import { BothDigits } from "./both-digits.js";
import { BothTensors } from "./both-tensors.js";
import { BothTexts } from "./both-texts.js";
import { RuntimeMissing } from "./runtime.js";

export function InBrowser({ model: description, name }) {
  const [state, setState] = useState({ phase: "asked" }); // asked, loading, ready or failed
  const current = useRef(null);
  useEffect(() => () => current.current?.model.release(), []);
  const load = async () => {
    setState({ phase: "loading", received: 0, total: 0 });
    try {
      // Bytes may still arrive after a failure.
      const progress = (received, total) =>
        setState((before) => (before.phase === "loading" ? { phase: "loading", received, total } : before));
      const opened = await openModel(description, progress);
      current.current = opened;
      setState({ phase: "ready", ...opened });
    } catch (error) {
      setState({ phase: "failed", error });
    }
  };
  if (state.phase === "ready") return html`<${Ready} description=${description} name=${name} opened=${state} />`;
  return html`<section class="panel" aria-label="In the browser">
    ${state.phase === "asked" ? html`<${Ask} description=${description} onLoad=${load} />` : null}
    ${state.phase === "loading" ? html`<${Loading} received=${state.received} total=${state.total} />` : null}
    ${state.phase === "failed" ? html`<${Failed} error=${state.error} onRetry=${load} />` : null}
  </section>`;
}

function Ask({ description, onLoad }) {
  if (description.downloadable === false) {
    return html`<${Empty} title=${`${description.name} may not be downloaded.`}>
      <p>Set <code>downloadable = true</code> in its entry of the configuration.</p><//>`;
  }
  return html`<${Empty} title=${`Run ${description.name} in this page`}>
    <p>The page fetches the files of the model and runs them with onnxruntime-web. Inputs then do not leave this machine,
      except for the comparison with the server.</p>
    <p class="pg-later"><button type="button" class="primary" onClick=${onLoad}>Load the model</button></p><//>`;
}

function Loading({ received, total }) {
  const isFetched = total > 0 && received >= total;
  return html`<${Busy}>${isFetched ? "Starting the model" : "Fetching the model"}<//>
    <progress class="pg-progress" aria-label="Bytes of the model" max=${total || 1} value=${received}></progress>
    <p class="detail">${formatBytes(received)} of ${total ? formatBytes(total) : "the model"}</p>`;
}

function Failed({ error, onRetry }) {
  if (error instanceof RuntimeMissing) {
    return html`<${Empty} title="This server has no runtime for browsers.">
      <p>Run <code>make web</code> beside the server's code, then start the server again. It fetches onnxruntime-web from npm.</p>
      <p class="pg-later"><button type="button" onClick=${onRetry}>Try again</button></p><//>`;
  }
  return html`<${ErrorNotice} error=${error} title="The model does not run here" onRetry=${onRetry} />`;
}

function Ready({ description, name, opened }) {
  const { model, encoder, bytes, loadMs } = opened;
  const threads = model.threads === 1 ? "one thread" : `${model.threads} threads`;
  const View = encoder ? BothTexts : drawsDigits(description) ? BothDigits : BothTensors;
  return html`
    <p class="detail pg-loaded">${formatBytes(bytes)} loaded in ${formatDuration(loadMs / 1000)} · onnxruntime-web with ${threads}</p>
    <${View} description=${description} name=${name} model=${model} encoder=${encoder} />`;
}
