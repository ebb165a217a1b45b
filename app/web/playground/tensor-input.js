// The form of one tensor input: its shape, and values by hand, by a filling or from a file.
import { html, useState } from "../lib/html.js";
import { RANGES, pictureLayout, readPicture } from "./image-values.js";
import { readNpy } from "./npy.js";
import { Field, TextField } from "./parts.js";
import { FILLINGS, closedShape, convert, countOf, fill, fitShape, flatten, isPlain, nest, readShape } from "./tensor-values.js";

/** More values are not shown in the text field. */
const MAX_SHOWN = 2048;

/** Return the first state of an input `{name, dtype, shape}`: `{shape, text, data, source, fault}`. */
export function newInput(spec) {
  const shape = closedShape(spec.shape);
  return isPlain(spec.dtype) ? filled(spec, shape, "zeros") : { shape: null, text: "[]", data: null, source: "", fault: null };
}

/** Return the value of an input in a request; throws nothing: a state with a fault has none. */
export const valueOf = (spec, state) =>
  isPlain(spec.dtype) ? { shape: state.shape, dtype: spec.dtype, data: state.data } : JSON.parse(state.text);

export function TensorInput({ spec, state, onChange }) {
  const [range, setRange] = useState("0 to 1");
  const [shapeText, setShapeText] = useState(null);
  const layout = isPlain(spec.dtype) ? pictureLayout(spec.shape ?? []) : null;
  const attempt = (make) => {
    try { onChange(make()); } catch (error) { onChange({ ...state, fault: error.message }); }
  };
  const upload = async (event) => {
    const file = event.currentTarget.files[0];
    event.currentTarget.value = "";
    if (!file) return;
    try {
      onChange(shown(spec, await readFile(file, spec, range), file.name));
    } catch (error) {
      onChange({ ...state, fault: error.message });
    }
  };
  const choose = (event) => {
    const name = event.currentTarget.value;
    event.currentTarget.value = "";
    attempt(() => filled(spec, state.shape, name));
  };
  const editShape = (text) => {
    setShapeText(text);
    attempt(() => {
      const shape = readShape(text);
      return countOf(shape) === state.data.length ? shown(spec, { shape, data: state.data }, state.source) : filled(spec, shape, "zeros");
    });
  };
  return html`<fieldset class="pg-input">
    <legend><strong>${spec.name}</strong> <span class="detail">${spec.dtype} ${shapeOf(spec.shape)}</span></legend>
    ${isPlain(spec.dtype) ? html`<div class="pg-input-tools">
      <${TextField} label="Shape" value=${shapeText ?? state.shape.join(", ")} onChange=${editShape} onBlur=${() => setShapeText(null)} />
      <${Field} label="Fill with" render=${(id) => html`<select id=${id} value="" onChange=${choose}>
        <option value="">choose</option>${Object.keys(FILLINGS).map((each) => html`<option key=${each}>${each}</option>`)}</select>`} />
      <${Field} label="File" hint=${layout ? ".npy, .json or a picture" : ".npy or .json"}
        render=${(id, hint) => html`<span class="button pg-file">Choose
          <input id=${id} aria-describedby=${hint} type="file" accept=${layout ? ".npy,.json,image/*" : ".npy,.json"}
            onChange=${upload} /></span>`} />
      ${layout ? html`<${Field} label="Picture values" render=${(id) => html`<select id=${id} value=${range}
        onChange=${(event) => setRange(event.currentTarget.value)}>
        ${Object.keys(RANGES).map((each) => html`<option key=${each}>${each}</option>`)}</select>`} />` : null}
    </div>` : null}
    ${state.text === null
      ? html`<p class="detail">${state.data.length.toLocaleString("en-GB")} values${state.source ? ` from ${state.source}` : ""},
          too many to edit here</p>`
      : html`<${TextField} label=${`Values of ${spec.name}`} hint=${state.source ? `from ${state.source}` : "JSON, nested or flat"}
          rows="4" class="pg-code" spellcheck=${false} aria-invalid=${state.fault ? "true" : null}
          value=${state.text} onChange=${(text) => onChange(parsed(spec, state, text))} />`}
    ${state.fault ? html`<p class="field-error" role="alert">${state.fault}</p>` : null}
  </fieldset>`;
}

export const shapeOf = (shape) => (shape ? `[${shape.map((length) => (length < 0 ? "any" : length)).join(", ")}]` : "of any shape");

const filled = (spec, shape, name) => shown(spec, { shape, data: fill(name, countOf(shape), spec.dtype) }, "");

/** Return the state of values, with the text to edit if they are few. */
function shown(spec, { shape, data }, source) {
  const plain = (_, value) => (typeof value === "bigint" ? Number(value) : value);
  const text = data.length > MAX_SHOWN ? null : JSON.stringify(nest(data, shape), plain);
  return { shape, data, text, source, fault: null };
}

/** Return the state after an edit of the text. */
function parsed(spec, state, text) {
  try {
    const value = JSON.parse(text);
    if (!isPlain(spec.dtype)) return { ...state, text, fault: null };
    const { shape, data } = flatten(value);
    const isNested = shape.length > 1 || (spec.shape ?? []).length <= 1;
    return { shape: isNested ? shape : fitShape(data.length, state.shape, spec.shape), data, text, source: "", fault: null };
  } catch (error) {
    const isJson = !(error instanceof SyntaxError);
    return { ...state, text, fault: isJson ? error.message : `values: expected JSON, got an error: ${error.message}` };
  }
}

/** Return `{shape, data}` of a file: .npy, .json, or a picture. */
async function readFile(file, spec, range) {
  if (file.type.startsWith("image/")) {
    const picture = await readPicture(file, spec.shape, range);
    return { shape: picture.shape, data: convert(picture.data, spec.dtype) };
  }
  const isNpy = file.name.endsWith(".npy");
  const { shape, data } = isNpy ? readNpy(new Uint8Array(await file.arrayBuffer())) : flatten(JSON.parse(await file.text()));
  const rank = (spec.shape ?? shape).length;
  const fitting = shape.length === rank ? shape : fitShape(data.length, closedShape(spec.shape), spec.shape);
  return { shape: fitting, data: convert(data, spec.dtype) };
}
