// A button that copies a text to the clipboard, and says whether it did.
import { Icon } from "../components/icons.js";
import { html, useEffect, useState } from "../lib/html.js";

const SHOWN_MS = 2000;

/** `text`: what is copied. `className`: of the button. */
export function CopyButton({ text, className = "" }) {
  const [result, setResult] = useState(null);
  useEffect(() => {
    if (result === null) return undefined;
    const timer = setTimeout(() => setResult(null), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [result]);
  const copy = async () => setResult({ isCopied: await copyText(text) });
  const said = result === null ? null : result.isCopied ? "Copied" : "Copy failed";
  return html`<button type="button" class=${className} onClick=${copy}>
      <${Icon} name=${result === null ? "copy" : result.isCopied ? "good" : "bad"} />${said ?? "Copy"}</button>
    <span class="visually-hidden" role="status">${said}</span>`;
}

/** Copy a text. Returns whether the browser allowed it. */
async function copyText(text) {
  // Only pages of a secure address have a clipboard.
  if (!navigator.clipboard) return copySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text);
  }
}

function copySelection(text) {
  const before = document.activeElement;
  const area = Object.assign(document.createElement("textarea"), { value: text, readOnly: true, className: "visually-hidden" });
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return isCopied;
}
