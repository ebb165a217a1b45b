// Small parts that several tools use.
import { html, useEffect, useId, useState } from "../lib/html.js";

/** Windows in which the panels beside a tool are below it, as in the styles. */
const NARROW = "(max-width: 1020px)";

/** A panel that folds. It is open in a wide window, and closed in a narrow one. `element`: a reference to it. */
export function Fold({ title, detail = null, className = "", element = null, children }) {
  const [isOpen, setOpen] = useState(() => !matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const follow = () => setOpen(!query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return html`<details class=${`panel pg-fold ${className}`} ref=${element} open=${isOpen} aria-label=${title}
      onToggle=${(event) => { if (event.target === event.currentTarget) setOpen(event.currentTarget.open); }}>
    <summary><h2>${title}</h2>${detail === null ? null : html`<span class="detail">${detail}</span>`}</summary>
    <div class="pg-fold-body">${children}</div>
  </details>`;
}

/** A labelled field. `render(id, describedBy)` draws the control; `hint`: a short text below it. */
export function Field({ label, hint = null, render, className = "" }) {
  const id = useId();
  return html`<div class=${`pg-field ${className}`}>
    <label for=${id}>${label}</label>
    ${render(id, hint ? `${id}-hint` : null)}
    ${hint ? html`<p class="detail" id=${`${id}-hint`}>${hint}</p>` : null}
  </div>`;
}

/** A field for text, of several lines with `rows`. `onChange(text)`. Other properties are those of the control. */
export function TextField({ label, value, onChange, rows = null, hint = null, ...others }) {
  const render = (id, described) => {
    const onInput = (event) => onChange(event.currentTarget.value);
    const shared = { id, value, onInput, "aria-describedby": described, ...others };
    return rows === null
      ? html`<input type="text" autocomplete="off" ...${shared} />`
      : html`<textarea rows=${rows} ...${shared}></textarea>`;
  };
  return html`<${Field} label=${label} hint=${hint} render=${render} />`;
}

/** A box to tick. */
export function Check({ label, checked, onChange, hint = null }) {
  return html`<label class="pg-check" title=${hint}><input type="checkbox" checked=${checked}
    onChange=${(event) => onChange(event.currentTarget.checked)} /><span>${label}</span></label>`;
}

/** A choice of few: buttons of which one is pressed. `options`: `[value, label]`. */
export function Choice({ label, options, value, onChange }) {
  return html`<div class="pg-choice" role="group" aria-label=${label}>${options.map(([each, text]) => html`
    <button key=${each} type="button" aria-pressed=${each === value ? "true" : "false"}
      onClick=${() => onChange(each)}>${text}</button>`)}</div>`;
}

/** Labels of at most so many characters stand beside their bars in a narrow column. */
const SHORT_LABEL = 12;

/** Bars of shares from 0 to 1: `[{label, share, text, strong}]`. The text has the number. */
export function ShareBars({ rows, label }) {
  const isShort = rows.every((row) => row.label.length <= SHORT_LABEL);
  const width = (share) => `${100 * Math.max(0, Math.min(1, share))}%`;
  return html`<ul class=${`pg-bars ${isShort ? "pg-bars-short" : ""}`} aria-label=${label}>${rows.map((row) => html`
    <li key=${row.key ?? row.label} class=${row.strong ? "pg-strong" : ""}>
    <span class="pg-bar-label" title=${row.label}>${row.label}</span>
    <span class="pg-bar-track" aria-hidden="true"><span class="pg-bar" style=${{ width: width(row.share) }}></span></span>
    <span class="number">${row.text}</span></li>`)}</ul>`;
}

/** Run, and Stop while it runs. */
export function RunButtons({ phase, onStop, label = "Run", disabled = false }) {
  return html`<div class="row">
    ${phase === "busy"
      ? html`<button type="button" onClick=${onStop}>Stop</button>`
      : html`<button type="submit" class="primary" disabled=${disabled}>${label}</button>`}
  </div>`;
}
