import { html } from "../lib/html.js";

export function Models() {
  return html`<h1>Models</h1>`;
}
