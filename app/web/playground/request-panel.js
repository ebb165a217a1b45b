// The request of a tool as snippets to copy, and where the time of its last answer went.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { currentKey, onKey } from "../lib/key.js";
import { CopyButton } from "./copy-button.js";
import { Choice } from "./parts.js";
import { RequestLink, requestIdOf } from "../components/request-link.js";
import { BODY_FILE, bodyText, snippetsOf } from "./snippets.js";
import { blobOf, picturesOf } from "./snippets-pictures.js";

/** `request`: as snippets.js takes it, or null while the form has none. `timing`: a waterfall, or null before an answer. */
export function RequestPanel({ request, timing }) {
  const requestId = requestIdOf(timing?.props);
  return html`
    ${timing ? html`<section class="panel" aria-label="Timing">${timing}
      ${requestId ? html`<p class="detail">Phases in the server: <${RequestLink} id=${requestId} /></p>` : null}</section>` : null}
    <section class="panel" aria-label="Request as code">
      <h2>This request as code</h2>
      ${request ? html`<${Snippets} request=${request} />` : html`<p class="muted">The form has no valid request yet.</p>`}
    </section>`;
}

function Snippets({ request }) {
  const [chosen, setChosen] = useState("curl");
  const [hasKey, setHasKey] = useState(currentKey() !== null);
  useEffect(() => onKey((key) => setHasKey(key !== null)), []);
  const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const snippets = useMemo(() => snippetsOf(request, base, hasKey), [request, base, hasKey]);
  const snippet = snippets.find((each) => each.id === chosen) ?? snippets[0];
  const isLong = snippet.text.includes(BODY_FILE);
  const pictures = isLong || !request.body ? [] : picturesOf(request);
  return html`
    <div class="row pg-snippet-head">
      <${Choice} label="Language" value=${snippet.id} onChange=${setChosen} options=${snippets.map(({ id, label }) => [id, label])} />
      <span class="spacer"></span>
      ${isLong ? html`<button type="button" onClick=${() => save(new Blob([bodyText(request)], { type: "application/json" }), BODY_FILE)}>Save ${BODY_FILE}</button>` : null}
      <${CopyButton} text=${snippet.text} />
    </div>
    <pre class="pg-snippet" data-language=${snippet.id} tabindex="0"
      aria-label=${`Request with ${snippet.label}`}><code>${snippet.text}</code></pre>
    ${pictures.length ? html`<div class="row pg-snippet-files"><span class="detail">The code reads these files from the current folder:</span>
      ${pictures.map((picture) => html`<button key=${picture.name} type="button" aria-label=${`Save ${picture.name}`}
        onClick=${() => save(blobOf(picture), picture.name)}>${picture.name}</button>`)}</div>` : null}
    ${hasKey ? html`<p class="detail">Set <code>ROUNDHOUSE_KEY</code> in the environment to your key.</p>` : null}`;
}

/** Let the browser save a file. */
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(address);
}
