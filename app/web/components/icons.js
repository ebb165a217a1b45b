// Small drawings. They do not depend on the fonts of the reader's system.
import { html } from "../lib/html.js";

const PATHS = {
  key: "M10.5 2.5a3 3 0 1 1 0 6 3 3 0 0 1 0-6M8.3 7.7 2.5 13.5M4.6 11.4l2 2",
  auto: "M8 2.2a5.8 5.8 0 1 1 0 11.6 5.8 5.8 0 0 1 0-11.6",
  light: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M3 13l1.2-1.2M11.8 4.2 13 3",
  dark: "M13.2 9.8A5.8 5.8 0 0 1 6.2 2.8a5.6 5.6 0 1 0 7 7Z",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  good: "M3 8.5l3.2 3.2L13 5",
  bad: "M8 2.2 14.5 13.5H1.5ZM8 6.5v3.2M8 11.6v.2",
  wait: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5M8 5v3.2l2 1.6",
  off: "M3.5 8h9",
  copy: "M5.5 5.5h8v8h-8ZM3 10.5H2.5v-8h8V3",
  edit: "M10.8 2.8l2.4 2.4L5.5 12.9l-3 .6.6-3ZM9 4.6 11.4 7",
  again: "M13 8A5 5 0 1 1 11.3 4.2M13 2.2v3h-3",
};
// The filled part of a drawing.
const FILLED = { auto: "M8 2.2a5.8 5.8 0 0 0 0 11.6Z" };

/** A drawing of 16 pixels in the colour of the text. It says nothing to a screen reader: text stands beside it. */
export function Icon({ name }) {
  return html`<svg class="icon icon-${name}" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
    <path d=${PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" />
    ${FILLED[name] ? html`<path d=${FILLED[name]} fill="currentColor" />` : null}
  </svg>`;
}
