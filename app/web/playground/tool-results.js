// A field for the result of each call of a tool, which the person is, and a button that sends them to the model.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { TextField } from "./parts.js";

/**
 * `calls`: of the last answer, as generation.js gathers them. `onSend([{id, content}])`.
 *
 * `results`, `onCancel`: given results to change, and what leaves them as they are.
 */
export function ToolResults({ calls, onSend, results: given = [], onCancel = null, isDisabled = false }) {
  const [contents, setContents] = useState(() => Object.fromEntries(given.map(({ id, content }) => [id, content])));
  const form = useRef(null);
  useLayoutEffect(() => { if (onCancel) form.current.querySelector("textarea")?.focus(); }, []);
  const results = calls.map(({ id }) => ({ id, content: contents[id] ?? "" }));
  const isEmpty = results.some((each) => each.content.trim() === "");
  const submit = (event) => { event.preventDefault(); if (!isEmpty && !isDisabled) onSend(results); };
  const onKeyDown = (event) => { if (event.key === "Escape") onCancel?.(); };
  return html`<form class="pg-results stack" aria-label="Results of tools" ref=${form} onSubmit=${submit} onKeyDown=${onKeyDown}>
    ${calls.map(({ id, function: { name } }, at) => html`<${TextField} key=${id} rows="2" value=${contents[id] ?? ""}
      label=${`Result of ${name}${calls.length > 1 ? `, call ${at + 1}` : ""}`} placeholder='text or JSON, as {"degrees": 21}'
      onChange=${(content) => setContents((all) => ({ ...all, [id]: content }))} />`)}
    <div class="row"><button type="submit" class="primary" disabled=${isEmpty || isDisabled}>
      ${onCancel ? "Ask again" : calls.length > 1 ? "Send results" : "Send result"}</button>
      ${onCancel ? html`<button type="button" onClick=${onCancel}>Cancel</button>` : null}</div>
  </form>`;
}
