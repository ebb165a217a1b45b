// Registration of a model from the folders of the server.
import { Dialog } from "../components/dialog.js";
import { ErrorNotice } from "../components/message.js";
import { ActionProgress } from "../components/progress.js";
import { dismiss, track } from "../lib/actions.js";
import { getJson, sendJson } from "../lib/api.js";
import { formatBytes } from "../lib/format.js";
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { link } from "../lib/router.js";

/** The name of a model, as `roundhouse serve` makes it from a path or an address. */
export function nameOf(path) {
  const hub = /^hf:\/\/([^/@]+\/[^/@]+)(@[^/]*)?\/?$/.exec(path.trim());
  if (hub) return hub[1];
  const parts = path.trim().replace(/[?#].*$/, "").split(/[\\/]+/).filter((part) => part !== "" && part !== ".");
  const file = parts.at(-1) ?? "";
  const named = /^model\.onnx$/.test(file) && parts.length > 1 ? parts.at(-2) : file.replace(/\.(onnx|gguf)$/i, "");
  return named.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "");
}

export function RegisterDialog({ onClose }) {
  const folders = useFolders();
  const [form, setForm] = useState({ framework: "", name: "", path: "", extra: "" });
  const [isNamed, setNamed] = useState(false);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const id = useId();
  const isOpen = useRef(true);
  useEffect(() => () => { isOpen.current = false; }, []);
  const change = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  // Until the reader writes a name, it follows from the path.
  const setPath = (path) => setForm({ ...form, path, name: isNamed ? form.name : nameOf(path) });
  const setName = (event) => { setNamed(event.target.value !== ""); change("name")(event); };
  const send = async (event) => {
    event.preventDefault();
    let extra;
    try {
      extra = form.extra.trim() === "" ? {} : JSON.parse(form.extra);
    } catch (fault) {
      setError({ message: `more keys: expected JSON, got another text (${fault.message})` });
      return;
    }
    const name = form.name.trim();
    setError(null);
    setBusy(true);
    const body = { ...extra, ...(form.framework ? { framework: form.framework } : {}), name, path: form.path.trim() };
    let refusal = null;
    const done = await track(name, "Registering and loading", async () => {
      try { await sendJson("POST", "models", body); } catch (caught) { refusal = caught; throw caught; }
    });
    // After the dialog was closed, the list of models shows how it ended.
    if (!isOpen.current) return;
    setBusy(false);
    setError(refusal);
    if (!done) dismiss(name);
    if (done) { onClose(); location.hash = link("models", name); }
  };
  return html`<${Dialog} title="Register a model" onClose=${onClose}>
    <form class="stack" onSubmit=${send}>
      ${folders?.length ? html`<div class="field"><label for="${id}-folder">Folder of the server</label>
        <select id="${id}-folder" data-focus onChange=${(event) => { if (event.target.value) setPath(event.target.value); }}><option value="">Choose, or type a path below</option>
          ${folders.map((each) => html`<option key=${each.path} value=${each.path}>${folderText(each)}</option>`)}
        </select></div>` : null}
      <div class="field"><label for="${id}-path">Path or address</label>
      <input id="${id}-path" class="mono" required spellcheck=${false} value=${form.path} onInput=${(event) => setPath(event.target.value)}
        placeholder="./models/digits or hf://org/name" /></div>
      <div class="field"><label for="${id}-name">Name</label>
      <input id="${id}-name" required spellcheck=${false} value=${form.name} onInput=${setName} /></div>
      <fieldset class="row"><legend>Framework</legend>
        ${[["", "From the files"], ["onnx", "ONNX"], ["pytorch", "PyTorch"]].map(([value, label]) => html`<label key=${value} class="choice">
          <input type="radio" name="${id}-framework" value=${value} checked=${form.framework === value} onChange=${change("framework")} /> ${label}</label>`)}
      </fieldset>
      <div class="field"><label for="${id}-extra">More keys of its entry, as JSON <span class="muted">(optional)</span></label>
      <textarea id="${id}-extra" class="mono" rows="3" spellcheck=${false} value=${form.extra} onInput=${change("extra")}
        placeholder='{"version_policy": "all", "load": "lazy"}'></textarea></div>
      ${busy ? html`<${ActionProgress} name=${form.name.trim()} /><p class="detail">You may close this dialog: the registration goes on.</p>` : null}
      ${error ? html`<${ErrorNotice} error=${error} title="The model was not registered" />` : null}
      <footer class="actions"><button type="button" onClick=${onClose}>${busy ? "Close" : "Cancel"}</button>
        <button type="submit" class="primary" disabled=${busy}>Register and load</button></footer>
    </form>
  <//>`;
}

function folderText({ path, bytes, versions, registered_as: names }) {
  const parts = [path, formatBytes(bytes)];
  if (versions.length) parts.push(`versions ${versions.join(", ")}`);
  if (names.length) parts.push(`registered as ${names.join(", ")}`);
  return parts.join(" · ");
}

/** Model folders below the roots of the server, or null while they are not known. */
function useFolders() {
  const [folders, setFolders] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    // Without this list a path can still be typed.
    getJson("folders", { signal: control.signal }).then((body) => setFolders(body.folders), () => {});
    return () => control.abort();
  }, []);
  return folders;
}
