// An output tensor as a table, a heat map, an image, or bars.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { colour, onTheme } from "../lib/theme.js";
import { percent, short } from "./numbers.js";
import { Choice, ShareBars } from "./parts.js";
import { countOf } from "./tensor-values.js";

const MAX_ROWS = 50;
const MAX_COLUMNS = 24;

/** All outputs of a response by name. */
export function Outputs({ outputs }) {
  return Object.entries(outputs).map(([name, value]) => html`<${TensorView} key=${name} name=${name} value=${value} />`);
}

/** `value`: `{dtype, shape, data}` of a response, with nested or flat data. */
function TensorView({ name, value }) {
  const flat = Array.isArray(value.data) ? value.data.flat(Infinity) : [value.data];
  const isNumbers = flat.every((each) => typeof each === "number" || typeof each === "boolean" || each === null);
  const planes = isNumbers ? planesOf(value.shape) : null;
  const views = [
    ["table", "Table"],
    ...(planes && countOf(value.shape) > 1 ? [["heat", "Heat map"]] : []),
    ...(planes && isPicture(planes) ? [["image", "Image"]] : []),
  ];
  const [view, setView] = useState("table");
  const [plane, setPlane] = useState(0);
  const chosen = views.some(([id]) => id === view) ? view : "table";
  const last = planes ? planes.count - 1 : 0;
  const shown = planes ? planeOf(flat, planes, Math.min(plane, last)) : flat;
  return html`<section class="pg-output" aria-label=${`Output ${name}`}>
    <div class="row"><h3>${name}</h3><span class="detail">${value.dtype} [${value.shape.join(", ")}]</span><span class="spacer"></span>
      ${views.length > 1 ? html`<${Choice} label=${`View of ${name}`} options=${views} value=${chosen} onChange=${setView} />` : null}</div>
    ${last > 0 ? html`<label class="row pg-plane">Plane
      <input type="range" min="0" max=${last} value=${Math.min(plane, last)} onInput=${(event) => setPlane(Number(event.currentTarget.value))} />
      <span class="number">${Math.min(plane, last) + 1} of ${last + 1}</span></label>` : null}
    ${!planes ? html`<${Maps} values=${flat} />`
      : chosen === "table" ? html`<${Table} values=${shown} rows=${planes.rows} columns=${planes.columns} />`
      : html`<${Picture} name=${name} values=${shown} rows=${planes.rows} columns=${planes.columns} isGrey=${chosen === "image"} />`}
  </section>`;
}

/** Split a shape into planes of the last two dimensions; one dimension is a row, or a square where it has one. */
function planesOf(shape) {
  if (shape.some((length) => length === 0)) return null;
  const columns = shape.at(-1) ?? 1;
  const rows = shape.at(-2) ?? 1;
  return { rows, columns, count: countOf(shape.slice(0, -2)) };
}

const planeOf = (values, { rows, columns }, at) => values.slice(at * rows * columns, (at + 1) * rows * columns);

const isPicture = ({ rows, columns }) => rows >= 4 && columns >= 4;

function Table({ values, rows, columns }) {
  const [height, width] = [Math.min(rows, MAX_ROWS), Math.min(columns, MAX_COLUMNS)];
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Values"><table class="pg-values"><tbody>
    ${Array.from({ length: height }, (_, row) => html`<tr key=${row}><th scope="row">${row}</th>
      ${Array.from({ length: width }, (_each, column) => html`
        <td key=${column} class="number">${short(values[row * columns + column])}</td>`)}</tr>`)}
    </tbody></table></div>
    ${height < rows || width < columns
      ? html`<p class="detail">The first ${height} × ${width} of ${rows} × ${columns} values</p>`
      : null}`;
}

/** Strings, and the maps of a classifier: bars of their numbers. */
function Maps({ values }) {
  return values.slice(0, MAX_ROWS).map((value, at) => {
    if (value === null || typeof value !== "object") return html`<p key=${at}><code>${short(value)}</code></p>`;
    const entries = Object.entries(value);
    const isShares = entries.every(([, each]) => typeof each === "number" && each >= 0 && each <= 1);
    if (!isShares) return html`<pre key=${at} class="pg-snippet" tabindex="0">${JSON.stringify(value, null, 1)}</pre>`;
    const best = Math.max(...entries.map(([, each]) => each));
    const rows = entries.map(([label, each]) => ({ label, share: each, text: percent(each), strong: each === best }));
    return html`<${ShareBars} key=${at} label=${`Row ${at + 1}`} rows=${rows} />`;
  });
}

/** Values as colours: from the ground to the accent, or from black to white. */
function Picture({ name, values, rows, columns, isGrey }) {
  const canvas = useRef(null);
  const numbers = values.map(Number);
  const low = Math.min(...numbers.slice(0, 100_000));
  const high = Math.max(...numbers.slice(0, 100_000));
  useEffect(() => {
    const draw = () => paint(canvas.current, numbers, rows, columns, low, high, isGrey);
    draw();
    return onTheme(draw);
  });
  return html`<figure class="pg-picture">
    <canvas ref=${canvas} width=${columns} height=${rows} role="img"
      aria-label=${`${name}: ${rows} × ${columns} values from ${short(low)} to ${short(high)}`}></canvas>
    <figcaption class="detail"><span class=${isGrey ? "pg-scale pg-scale-grey" : "pg-scale"} aria-hidden="true"></span>
      ${short(low)} to ${short(high)}</figcaption>
  </figure>`;
}

function paint(canvas, values, rows, columns, low, high, isGrey) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const [from, to] = isGrey ? [[0, 0, 0], [255, 255, 255]] : [rgb(colour("sunken")), rgb(colour("accent"))];
  values.forEach((value, at) => {
    const share = high > low ? (value - low) / (high - low) : 0;
    for (let channel = 0; channel < 3; channel += 1) image.data[at * 4 + channel] = from[channel] + share * (to[channel] - from[channel]);
    image.data[at * 4 + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
