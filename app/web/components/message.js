// Notices: an error of the server with its advice, an empty state, and work that goes on.
import { html } from "../lib/html.js";
import { RequestLink } from "./request-link.js";

/** An error, with what to do about it. `onRetry`: shows a button. */
export function ErrorNotice({ error, title = "That did not work", onRetry = null }) {
  return html`<div class="notice notice-error" role="alert">
    <p><strong>${title}.</strong> ${withCode(error.problem ?? error.message)}</p>
    ${error.advice ? html`<p>${withCode(capital(error.advice))}.</p>` : null}
    ${error.code ? html`<p class="detail">
      ${error.status ? `${error.status} ` : ""}<code>${error.code}</code>
      ${error.requestId ? html` · request <${RequestLink} id=${error.requestId} />` : null}
    </p>` : null}
    ${onRetry ? html`<p><button type="button" onClick=${onRetry}>Try again</button></p>` : null}
  </div>`;
}

export function Notice({ children, kind = "info" }) {
  return html`<div class="notice notice-${kind}" role="status">${children}</div>`;
}

/** A place without content yet: `title` says what is missing, the children say what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children ? html`<div>${children}</div>` : null}</div>`;
}

export function Busy({ children = "Loading" }) {
  return html`<p class="busy" role="status"><span class="spinner" aria-hidden="true"></span>${children} …</p>`;
}

/** Texts of the server have commands between backticks. */
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code key=${index}>${part}</code>` : part));
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");
}
