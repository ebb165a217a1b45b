// New records of a collection, and the deletion of all.
import { Confirm } from "../components/dialog.js";
import { ErrorNotice, Notice } from "../components/message.js";
import { sendJson } from "../lib/api.js";
import { collectionPath, parseVector } from "../lib/collections.js";
import { formatNumber } from "../lib/format.js";
import { html, useId, useState } from "../lib/html.js";

const EMPTY = { id: "", content: "", metadata: "" };

export function RecordForm({ collection, onChange }) {
  const [form, setForm] = useState(EMPTY);
  const [state, setState] = useState({ busy: false, error: null, note: null });
  const [asks, setAsks] = useState(false);
  const id = useId();
  const byText = collection.model !== null;
  const change = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const run = async (work, note) => {
    setState({ busy: true, error: null, note: null });
    try {
      const answer = await work();
      setState({ busy: false, error: null, note: note(answer) });
      onChange();
      return true;
    } catch (error) {
      setState({ busy: false, error, note: null });
      return false;
    }
  };
  const send = async (event) => {
    event.preventDefault();
    const saved = await run(
      () => sendJson("POST", collectionPath(collection.name, "/upsert"), { records: [recordOf(form, byText)] }),
      () => `The record ${form.id} is saved.`,
    );
    if (saved) setForm(EMPTY);
  };
  const clear = () => run(() => sendJson("POST", collectionPath(collection.name, "/delete"), { all: true }),
    ({ deleted }) => `${formatNumber(deleted)} records are deleted.`);
  return html`<form class="stack" aria-label="Save a record" onSubmit=${send}>
      <div class="field"><label for="${id}-id">Id</label>
        <input id="${id}-id" required spellcheck=${false} value=${form.id} onInput=${change("id")} aria-describedby="${id}-help" />
        <p class="detail" id="${id}-help">A record with this id is replaced.</p></div>
      <div class="field"><label for="${id}-content">${byText ? "Text" : `Vector of ${collection.dimensions} numbers`}</label>
        <textarea id="${id}-content" required rows="3" class=${byText ? "" : "mono"} value=${form.content} onInput=${change("content")}></textarea></div>
      <div class="field"><label for="${id}-metadata">Metadata as JSON <span class="muted">(optional)</span></label>
        <input id="${id}-metadata" class="mono" spellcheck=${false} value=${form.metadata} onInput=${change("metadata")} placeholder='{"topic": "trains"}' /></div>
      ${state.error ? html`<${ErrorNotice} error=${state.error} title="The records were not changed" />` : null}
      ${state.note ? html`<${Notice} kind="good"><p>${state.note}</p><//>` : null}
      <div class="row"><button type="submit" disabled=${state.busy}>Save the record</button><span class="spacer"></span>
        <button type="button" class="danger" disabled=${state.busy || !collection.rows} onClick=${() => setAsks(true)}>Delete all records</button></div>
    </form>
    ${asks ? html`<${Confirm} title="Delete all records of ${collection.name}?" action="Delete ${formatNumber(collection.rows)} records"
        onConfirm=${clear} onClose=${() => setAsks(false)}>
      <p>All ${formatNumber(collection.rows)} records are gone with their texts and metadata. The collection stays.</p><//>` : null}`;
}

function recordOf({ id, content, metadata }, byText) {
  const record = { id, ...(byText ? { text: content } : { vector: vectorOf(content) }) };
  if (metadata.trim() === "") return record;
  try {
    return { ...record, metadata: JSON.parse(metadata) };
  } catch (fault) {
    throw { message: `metadata: expected JSON, got another text (${fault.message})` };
  }
}

function vectorOf(text) {
  const vector = parseVector(text);
  if (vector === null) throw { message: "vector: expected numbers, got another text", advice: "write numbers between commas" };
  return vector;
}
