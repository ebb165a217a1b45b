import { html } from "../lib/html.js";

export function Overview() {
  return html`<h1>Overview</h1>`;
}
