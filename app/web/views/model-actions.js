// Buttons that load, unload, roll back and delete a model, with a question before what harms callers.
import { Confirm } from "../components/dialog.js";
import { actions, order } from "../lib/actions.js";
import { html, useId, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { useCanManage } from "../lib/rights.js";
import { sample } from "../lib/server.js";

/** `model`: of GET /models or GET /models/{name}. With the latter there are more buttons. */
export function ModelButtons({ model, onDeleted = null }) {
  const [question, setQuestion] = useState(null);
  const busy = useObservable(actions).get(model.name)?.done === false;
  const canManage = useCanManage();
  if (!canManage) return null;
  const { name, state } = model;
  const isLoaded = state === "ready" || state === "draining";
  const close = () => setQuestion(null);
  return html`
    ${isLoaded || state === "loading"
      ? html`<button type="button" disabled=${busy || state === "loading"} onClick=${() => setQuestion("unload")}>Unload</button>`
      : html`<button type="button" class="primary" disabled=${busy} onClick=${() => order(name, "Loading", "POST", "/load")}>Load</button>`}
    ${onDeleted && isLoaded ? html`<button type="button" disabled=${busy}
      title="Finds new versions and changed files" onClick=${() => order(name, "Loading changed files", "POST", "/load")}>Load again</button>` : null}
    ${model.previous_version ? html`<button type="button" disabled=${busy} onClick=${() => setQuestion("rollback")}>
      Roll back to ${model.previous_version}</button>` : null}
    ${onDeleted ? html`<button type="button" class="danger" disabled=${busy} onClick=${() => setQuestion("delete")}>Delete</button>` : null}
    ${question === "unload" ? html`<${ConfirmUnload} model=${model} onClose=${close} />` : null}
    ${question === "rollback" ? html`<${Confirm} title="Roll back ${name}?" action="Roll back to ${model.previous_version}" onClose=${close}
        onConfirm=${() => order(name, `Rolling back to ${model.previous_version}`, "POST", "/rollback")}>
      <p>All requests without a version switch from version <strong>${model.active_version}</strong> to
        version <strong>${model.previous_version}</strong>. Requests in progress complete first.</p><//>` : null}
    ${question === "delete" ? html`<${Confirm} title="Delete ${name}?" action="Delete ${name}" onClose=${close} onConfirm=${async () => {
        if (await order(name, "Deleting", "DELETE", "")) onDeleted();
      }}>
      <p>The model is unloaded and forgotten. Callers get 404 from then on. Its files stay.</p>
      <p>If an entry of the configuration has the model, the next start registers it again.</p><//>` : null}`;
}

/** Ask before an unload. `version`: of one version only. */
export function ConfirmUnload({ model, version = null, onClose }) {
  const [ends, setEnds] = useState(false);
  const [seconds, setSeconds] = useState("10");
  const id = useId();
  const inflight = useObservable(sample)?.models[model.name]?.inflight ?? 0;
  const what = version === null ? model.name : `version ${version} of ${model.name}`;
  const send = () => {
    const body = { ...(version === null ? {} : { version }), ...(ends ? { drain_timeout_s: Number(seconds) } : {}) };
    order(model.name, version === null ? "Unloading" : `Unloading version ${version}`, "POST", "/unload", body);
  };
  const isActive = version === null || version === model.active_version;
  return html`<${Confirm} title="Unload ${what}?" action="Unload" onConfirm=${send} onClose=${onClose}>
    <p>${isActive ? "Callers get 503 until it is loaded again." : "Callers that name this version get 503 until it is loaded again."}
      ${" "}${inflight ? html`Now <strong>${inflight}</strong> ${inflight === 1 ? "request is" : "requests are"} in progress.` : "No request is in progress."}</p>
    <p>The server waits for requests in progress, unless this says otherwise:</p>
    <p class="row"><input type="checkbox" id="${id}-ends" checked=${ends} onChange=${(event) => setEnds(event.target.checked)} />
      <label for="${id}-ends">End them after</label>
      <input class="short" type="number" min="0" max="86400" value=${seconds} disabled=${!ends} aria-label="Seconds"
        onInput=${(event) => setSeconds(event.target.value)} /> s</p>
  <//>`;
}
