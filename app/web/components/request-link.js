// The x-request-id of an answer as a link to the phases of its request.
import { html } from "../lib/html.js";
import { link } from "../lib/router.js";

/** `short`: the end of a long id, which tells requests of one server apart. */
export function RequestLink({ id, short = false }) {
  const shown = short && id.length > 12 ? `…${id.slice(-8)}` : id;
  return html`<a class="request-link" href=${link("requests", id)} title=${short ? id : null}
    onClick=${(event) => event.stopPropagation()}><code>${shown}</code></a>`;
}

/** The id of an answer as api.js's `call` returns it, or of `{text: {requestId}}`; null where it is not known. */
export function requestIdOf(answer) {
  return answer?.headers?.get("x-request-id") ?? answer?.text?.requestId ?? null;
}
