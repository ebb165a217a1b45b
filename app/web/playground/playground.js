import { html } from "../lib/html.js";

export function Playground() {
  return html`<h1>Playground</h1>`;
}
