// Dialogs of the browser: they keep the focus inside, and Escape closes them.
import { Icon } from "./icons.js";
import { html, useEffect, useId, useRef } from "../lib/html.js";

/** A modal dialog that is open while it is drawn. The element with `data-focus` has the focus first. `onClose`: after Escape, a click beside it, or its button. */
export function Dialog({ title, onClose, children, wide = false }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog.showModal();
    dialog.querySelector("[data-focus]")?.focus();
    return () => {
      if (dialog.open) dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const beside = (event) => { if (event.target === element.current) onClose(); };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${(event) => { event.preventDefault(); onClose(); }}
      onPointerDown=${beside}>
    <div class="dialog-body">
      <header><h2 id=${id}>${title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></header>
      ${children}
    </div>
  </dialog>`;
}

/** Ask before something that harms callers. `action`: words on the button that does it. */
export function Confirm({ title, action, children, onConfirm, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div class="dialog-text">${children}</div>
    <footer class="actions">
      <button type="button" data-focus onClick=${onClose}>Cancel</button>
      <button type="button" class="danger" onClick=${() => { onClose(); onConfirm(); }}>${action}</button>
    </footer>
  <//>`;
}
