// A part that scrolls to the side where its content is wider. It takes the focus, so that keys can scroll it.
import { html } from "../lib/html.js";

/** `label`: what is inside, for screen readers. */
export function Scroll({ label, children }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label=${label}>${children}</div>`;
}
