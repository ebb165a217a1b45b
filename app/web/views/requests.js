import { html } from "../lib/html.js";

export function Requests() {
  return html`<h1>Requests</h1>`;
}
