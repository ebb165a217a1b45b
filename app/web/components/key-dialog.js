// Entry of the API key.
import { Dialog } from "./dialog.js";
import { ErrorNotice } from "./message.js";
import { getJson } from "../lib/api.js";
import { html, useId, useState } from "../lib/html.js";
import { currentKey, faultOfKey, setKey } from "../lib/key.js";

/** `error`: why the server refused the last key, or null. The key is checked before the dialog closes. */
export function KeyDialog({ error: given = null, onClose }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(given);
  const [fault, setFault] = useState(null);
  const [busy, setBusy] = useState(false);
  const id = useId();
  const save = async (event) => {
    event.preventDefault();
    const value = text.trim();
    const found = faultOfKey(value);
    setFault(found);
    if (found !== null) return;
    setBusy(true);
    const before = currentKey();
    setKey(value);
    try {
      await getJson("models");
      onClose();
    } catch (refusal) {
      // A key that is known and may not read still works in the playground.
      if (refusal.status === 403) onClose();
      else {
        setKey(before);
        setError(refusal);
      }
    }
    setBusy(false);
  };
  const forget = () => { setKey(null); onClose(); };
  return html`<${Dialog} title="API key" onClose=${onClose}>
    <form onSubmit=${save} class="stack">
      ${error ? html`<${ErrorNotice} error=${error} title="The server refused the key" />` : null}
      <div class="field"><label for=${id}>Key</label>
      <input id=${id} type="password" autocomplete="off" spellcheck=${false} data-focus value=${text}
        aria-invalid=${fault !== null} aria-describedby="${id}-help" onInput=${(event) => setText(event.target.value)} /></div>
      ${fault ? html`<p class="field-error" role="alert">${fault}</p>` : null}
      <p id="${id}-help" class="detail">It is kept in this tab until the tab is closed. It is sent as a header, and is never part of an address.</p>
      <footer class="actions">
        ${currentKey() ? html`<button type="button" onClick=${forget}>Forget the key</button>` : null}
        <button type="submit" class="primary" disabled=${busy}>${busy ? "Checking …" : "Use this key"}</button>
      </footer>
    </form>
  <//>`;
}
