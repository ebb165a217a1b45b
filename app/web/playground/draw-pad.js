// A square to draw in: by mouse, pen or finger, and cell by cell with the keyboard.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { colour, onTheme } from "../lib/theme.js";
import { DIGIT_STROKES } from "./digit-strokes.js";
import { MAX_GREY, SIDE, rasterise } from "./raster.js";

const UNITS = 100; // the square, in the unit of strokes
const PIXELS = 480;
const CELL_PIXELS = PIXELS / SIDE;

/** No drawing: strokes of points `{x, y}`, and the cells that the keyboard set. */
export const NO_DRAWING = { strokes: [], cells: new Array(SIDE * SIDE).fill(0) };

/** Return the 64 grey values of a drawing. */
export function imageOf({ strokes, cells }) {
  const drawn = rasterise(strokes);
  return cells.map((cell, at) => Math.max(cell, drawn[at]));
}

export const isEmpty = ({ strokes, cells }) => strokes.length === 0 && cells.every((cell) => cell === 0);

/** Return a drawing as a file of a picture: black on white. */
export async function drawingFile(drawing) {
  const canvas = new OffscreenCanvas(PIXELS, PIXELS);
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, PIXELS, PIXELS);
  context.fillStyle = context.strokeStyle = "#000";
  paintCells(context, drawing.cells);
  paintStrokes(context, drawing.strokes);
  return new File([await canvas.convertToBlob({ type: "image/png" })], "drawing.png", { type: "image/png" });
}

/** `subject`: of the drawing, in words. `onChange(drawing)`: after each move of the pen and each cell. */
export function DrawPad({ drawing, onChange, subject = "a digit" }) {
  const canvas = useRef(null);
  const [cursor, setCursor] = useState(null); // the cell of the keyboard
  const isDown = useRef(false);
  const latest = useRef(drawing);
  latest.current = drawing;
  useEffect(() => {
    const draw = () => paint(canvas.current, drawing, cursor);
    draw();
    return onTheme(draw);
  }, [drawing, cursor]);
  const change = (next) => { latest.current = next; onChange(next); };
  const addPoints = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const events = event.getCoalescedEvents?.() ?? [];
    const points = (events.length ? events : [event]).map((each) => ({
      x: ((each.clientX - box.left) / box.width) * UNITS,
      y: ((each.clientY - box.top) / box.height) * UNITS,
    }));
    const strokes = latest.current.strokes;
    change({ ...latest.current, strokes: [...strokes.slice(0, -1), [...strokes.at(-1), ...points]] });
  };
  const down = (event) => {
    if (event.button !== 0) return;
    canvas.current.setPointerCapture(event.pointerId);
    isDown.current = true;
    setCursor(null);
    latest.current = { ...latest.current, strokes: [...latest.current.strokes, []] };
    addPoints(event);
  };
  const move = (event) => { if (isDown.current) addPoints(event); };
  const up = () => { isDown.current = false; };
  const key = (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const at = cursor ?? { row: 3, column: 3 };
    let next = at;
    if (steps[event.key]) {
      const [rows, columns] = steps[event.key];
      const keep = (value) => Math.max(0, Math.min(SIDE - 1, value));
      next = { row: keep(at.row + rows), column: keep(at.column + columns) };
    }
    const isPaint = event.key === " " || event.key === "Enter" || (steps[event.key] && event.shiftKey);
    if (!steps[event.key] && !isPaint && event.key !== "Delete") return;
    event.preventDefault();
    if (event.key === "Delete") { change(NO_DRAWING); return; }
    setCursor(next);
    if (!isPaint) return;
    const place = next.row * SIDE + next.column;
    const cells = [...latest.current.cells];
    cells[place] = event.shiftKey ? MAX_GREY : cells[place] ? 0 : MAX_GREY;
    change({ ...latest.current, cells });
  };
  const isInk = cursor && drawing.cells[cursor.row * SIDE + cursor.column] > 0;
  const position = cursor && `row ${cursor.row + 1}, column ${cursor.column + 1}, ${isInk ? "ink" : "empty"}`;
  return html`<div class="pg-pad">
    <canvas ref=${canvas} width=${PIXELS} height=${PIXELS} tabindex="0" role="application" aria-roledescription="drawing area"
      aria-label=${`Draw ${subject}. Arrow keys move a cell, Space sets it, Shift and an arrow draw, Delete clears.`}
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up}
      onKeyDown=${key} onBlur=${() => setCursor(null)}></canvas>
    <p class="visually-hidden" aria-live="polite">${position ?? ""}</p>
    <div class="pg-pad-tools" role="group" aria-label="Examples">
      ${DIGIT_STROKES.map((strokes, digit) => html`<button key=${digit} type="button" aria-label=${`Draw the example of ${digit}`}
        onClick=${() => change({ ...NO_DRAWING, strokes })}>${digit}</button>`)}
    </div>
    <div class="row"><button type="button" onClick=${() => change(NO_DRAWING)} disabled=${isEmpty(drawing)}>Clear</button></div>
    <p class="detail">Keyboard: arrows move, Space sets a cell, Shift and an arrow draw, Delete clears.</p>
  </div>`;
}

/** The 8 x 8 values that a model reads. */
export function ImagePreview({ image }) {
  const canvas = useRef(null);
  useEffect(() => {
    const context = canvas.current.getContext("2d");
    const pixels = context.createImageData(SIDE, SIDE);
    image.forEach((grey, at) => { pixels.data.set([...new Array(3).fill((255 * grey) / MAX_GREY), 255], at * 4); });
    context.putImageData(pixels, 0, 0);
  }, [image]);
  return html`<figure class="pg-preview">
    <canvas ref=${canvas} width=${SIDE} height=${SIDE} role="img" aria-label="The image that the model reads"></canvas>
    <figcaption class="detail">8 × 8 values, as the model reads them</figcaption></figure>`;
}

function paint(canvas, { strokes, cells }, cursor) {
  const context = canvas.getContext("2d");
  const cell = CELL_PIXELS;
  context.clearRect(0, 0, PIXELS, PIXELS);
  context.fillStyle = colour("accent-soft");
  paintCells(context, cells);
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  for (let line = 1; line < SIDE; line += 1) {
    context.beginPath();
    context.moveTo(line * cell, 0);
    context.lineTo(line * cell, PIXELS);
    context.moveTo(0, line * cell);
    context.lineTo(PIXELS, line * cell);
    context.stroke();
  }
  context.strokeStyle = colour("text");
  paintStrokes(context, strokes);
  if (cursor) {
    context.strokeStyle = colour("accent");
    context.lineWidth = 5;
    context.strokeRect(cursor.column * cell + 3, cursor.row * cell + 3, cell - 6, cell - 6);
  }
}

function paintCells(context, cells) {
  cells.forEach((grey, at) => {
    if (grey) context.fillRect((at % SIDE) * CELL_PIXELS, Math.floor(at / SIDE) * CELL_PIXELS, CELL_PIXELS, CELL_PIXELS);
  });
}

function paintStrokes(context, strokes) {
  context.lineWidth = PIXELS / 16;
  context.lineCap = context.lineJoin = "round";
  const scale = PIXELS / UNITS;
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(stroke[0].x * scale, stroke[0].y * scale);
    for (const point of stroke) context.lineTo(point.x * scale, point.y * scale);
    context.stroke();
  }
}
