// The dialog that creates a collection.
import { Dialog } from "../components/dialog.js";
import { ErrorNotice } from "../components/message.js";
import { sendJson } from "../lib/api.js";
import { html, useId, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { link } from "../lib/router.js";
import { models } from "../lib/server.js";

const METRICS = [["cosine", "Cosine"], ["dot", "Inner product"], ["euclid", "Euclidean distance"]];

export function CreateDialog({ onClose }) {
  const embedders = (useObservable(models) ?? []).filter(({ task }) => task === "embed");
  const [form, setForm] = useState({ name: "", dimensions: "", metric: "cosine", model: "" });
  const [state, setState] = useState({ busy: false, error: null });
  const id = useId();
  const change = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const send = async (event) => {
    event.preventDefault();
    const { name, dimensions, metric, model } = form;
    setState({ busy: true, error: null });
    try {
      await sendJson("POST", "v1/collections", { name, dimensions: Number(dimensions), metric, ...(model ? { model } : {}) });
    } catch (error) {
      setState({ busy: false, error });
      return;
    }
    onClose();
    location.hash = link("collections", name);
  };
  return html`<${Dialog} title="Create a collection" onClose=${onClose}>
    <form class="stack" onSubmit=${send}>
      <div class="field"><label for="${id}-name">Name</label>
        <input id="${id}-name" data-focus required spellcheck=${false} value=${form.name} onInput=${change("name")} /></div>
      <div class="field"><label for="${id}-model">Model of its texts</label>
        <select id="${id}-model" value=${form.model} onChange=${change("model")}><option value="">None: requests send vectors</option>
          ${embedders.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></div>
      <div class="field"><label for="${id}-dimensions">Dimensions</label>
        <input id="${id}-dimensions" type="number" min="1" max="65536" required value=${form.dimensions} onInput=${change("dimensions")}
          aria-describedby="${id}-help" />
        <p class="detail" id="${id}-help">Numbers of each vector, as the model returns them. They cannot be changed later.</p></div>
      <div class="field"><label for="${id}-metric">Metric</label>
        <select id="${id}-metric" value=${form.metric} onChange=${change("metric")}>
          ${METRICS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select></div>
      ${state.error ? html`<${ErrorNotice} error=${state.error} title="The collection was not created" />` : null}
      <footer class="actions"><button type="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class="primary" disabled=${state.busy}>Create</button></footer>
    </form>
  <//>`;
}
