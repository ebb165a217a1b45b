// The form of the options of text generation.
import { html } from "../lib/html.js";
import { changedValues, initialValues } from "./generation-options.js";
import { Check, Field, Fold } from "./parts.js";

/** `groups`: as in generation-options.js. `onChange(values)`: with all values after each change. */
export function OptionsForm({ groups, values, faults, onChange }) {
  const changed = Object.keys(changedValues(groups, values)).length;
  const set = (name, value) => onChange({ ...values, [name]: value });
  return html`<${Fold} title="Options" className="pg-options" detail=${changed ? `${changed} changed` : "defaults"}>
    ${changed ? html`<button type="button" class="pg-reset" onClick=${() => onChange(initialValues(groups))}>Reset all</button>` : null}
    ${groups.map(([title, rows], at) => html`<details key=${title} open=${at < 2}>
      <summary>${title}${rows.some((row) => faults[row.name]) ? html` <span class="field-error">(invalid)</span>` : null}</summary>
      <div class="pg-option-grid">${rows.map((row) => html`<${Option} key=${row.name} row=${row} value=${values[row.name]}
        fault=${faults[row.name]} onChange=${(value) => set(row.name, value)} />`)}</div>
    </details>`)}
  <//>`;
}

function Option({ row, value, fault, onChange }) {
  const label = row.label ?? capital(row.name.replaceAll("_", " "));
  if (row.kind === "flag") {
    return html`<div class="pg-field pg-wide"><${Check} label=${label} checked=${value} onChange=${onChange} />
      <p class="detail">${row.hint}</p></div>`;
  }
  const isWide = !["number", "integer"].includes(row.kind);
  const input = (event) => onChange(event.currentTarget.value);
  const render = (id, described) => {
    const shared = { id, value, "aria-describedby": described, "aria-invalid": fault ? "true" : null, onInput: input };
    if (row.kind === "choice") {
      return html`<select ...${shared}><option value="">default</option>
        ${row.values.map((each) => html`<option key=${each}>${each}</option>`)}</select>`;
    }
    if (row.kind === "lines" || row.kind === "json") {
      return html`<textarea rows=${row.kind === "json" ? 3 : 2} class="pg-code" spellcheck=${false} ...${shared}></textarea>`;
    }
    if (isWide) return html`<input type="text" autocomplete="off" ...${shared} />`;
    return html`<input type="number" inputmode="decimal" placeholder="default" min=${row.min} max=${row.max}
      step=${row.step ?? 1} ...${shared} />`;
  };
  return html`<${Field} label=${label} render=${render} className=${isWide ? "pg-wide" : ""}
    hint=${fault ? html`<span class="field-error">Expected ${fault}.</span>` : row.hint} />`;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
