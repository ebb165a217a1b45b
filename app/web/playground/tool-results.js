// A field for the result of each call of a tool, which the person is, and a button that sends them to the model.
import { html, useState } from "../lib/html.js";
import { TextField } from "./parts.js";

/** `calls`: of the last answer, as generation.js gathers them. `onSend([{id, content}])`. */
export function ToolResults({ calls, onSend }) {
  const [contents, setContents] = useState({});
  const results = calls.map(({ id }) => ({ id, content: contents[id] ?? "" }));
  const submit = (event) => { event.preventDefault(); onSend(results); };
  return html`<form class="pg-results stack" aria-label="Results of tools" onSubmit=${submit}>
    ${calls.map(({ id, function: { name } }, at) => html`<${TextField} key=${id} rows="2" value=${contents[id] ?? ""}
      label=${`Result of ${name}${calls.length > 1 ? `, call ${at + 1}` : ""}`} placeholder='text or JSON, as {"degrees": 21}'
      onChange=${(content) => setContents((all) => ({ ...all, [id]: content }))} />`)}
    <div class="row"><button type="submit" class="primary" disabled=${results.some((each) => each.content.trim() === "")}>
      ${calls.length > 1 ? "Send results" : "Send result"}</button></div>
  </form>`;
}
