// The request of a tool as snippets to copy, and where the time of its last answer went.
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { currentKey, onKey } from "../lib/key.js";
import { Choice } from "./parts.js";
import { BODY_FILE, bodyText, snippetsOf } from "./snippets.js";

const COPIED_MS = 2000;

/** `request`: as snippets.js takes it, or null while the form has none. `timing`: a waterfall, or null before an answer. */
export function RequestPanel({ request, timing }) {
  return html`
    ${timing ? html`<section class="panel" aria-label="Timing">${timing}</section>` : null}
    <section class="panel" aria-label="Request as code">
      <h2>This request as code</h2>
      ${request ? html`<${Snippets} request=${request} />` : html`<p class="muted">The form has no valid request yet.</p>`}
    </section>`;
}

function Snippets({ request }) {
  const [chosen, setChosen] = useState("curl");
  const [isCopied, setCopied] = useState(false);
  const [hasKey, setHasKey] = useState(currentKey() !== null);
  useEffect(() => onKey((key) => setHasKey(key !== null)), []);
  useEffect(() => {
    if (!isCopied) return undefined;
    const timer = setTimeout(() => setCopied(false), COPIED_MS);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const snippets = useMemo(() => snippetsOf(request, base, hasKey), [request, base, hasKey]);
  const snippet = snippets.find((each) => each.id === chosen) ?? snippets[0];
  const isLong = snippet.text.includes(BODY_FILE);
  const block = useRef(null);
  const copy = async () => {
    // Only pages of a secure address may write to the clipboard by themselves.
    if (navigator.clipboard) await navigator.clipboard.writeText(snippet.text);
    else {
      getSelection().selectAllChildren(block.current);
      document.execCommand("copy");
    }
    setCopied(true);
  };
  return html`
    <div class="row pg-snippet-head">
      <${Choice} label="Language" value=${snippet.id} onChange=${setChosen} options=${snippets.map(({ id, label }) => [id, label])} />
      <span class="spacer"></span>
      ${isLong ? html`<button type="button" onClick=${() => save(bodyText(request))}>Save ${BODY_FILE}</button>` : null}
      <button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>
      <span class="visually-hidden" role="status">${isCopied ? "Copied" : ""}</span>
    </div>
    <pre class="pg-snippet" ref=${block} data-language=${snippet.id} tabindex="0"
      aria-label=${`Request with ${snippet.label}`}><code>${snippet.text}</code></pre>
    ${hasKey ? html`<p class="detail">Set <code>ROUNDHOUSE_KEY</code> in the environment to your key.</p>` : null}`;
}

/** Let the browser save a text as a file. */
function save(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = BODY_FILE;
  anchor.click();
  URL.revokeObjectURL(address);
}
