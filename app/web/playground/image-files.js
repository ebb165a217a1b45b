// Files of pictures: chosen, dropped or pasted; and a drawn one to begin with.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { Field } from "./parts.js";

const TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/avif"];
const EXAMPLE_SIDE = 256;
const POINTS = 5;

/** A field that takes files of pictures by a button, by dropping, and by pasting. `onAdd([File])`. */
export function ImageField({ label, onAdd }) {
  const [isOver, setOver] = useState(false);
  const add = (list) => {
    const files = [...list].filter((file) => TYPES.includes(file.type));
    if (files.length) onAdd(files);
  };
  const over = (event) => { event.preventDefault(); setOver(true); };
  const drop = (event) => { event.preventDefault(); setOver(false); add(event.dataTransfer.files); };
  const choose = (event) => { add(event.currentTarget.files); event.currentTarget.value = ""; };
  useEffect(() => {
    const paste = (event) => add(event.clipboardData?.files ?? []);
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  });
  return html`<div class=${`pg-drop ${isOver ? "pg-drop-over" : ""}`} onDragOver=${over} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <${Field} label=${label} hint="JPEG, PNG, WebP, GIF, BMP or AVIF; drop or paste them, too" render=${(id, hint) => html`
      <span class="button pg-file">Choose<input id=${id} aria-describedby=${hint} type="file" multiple accept=${TYPES.join(",")}
        onChange=${choose} /></span>`} />
    <button type="button" onClick=${async () => onAdd([await exampleFile()])}>Draw an example</button>
  </div>`;
}

/** A small view of a picture. */
export function Thumbnail({ file }) {
  const address = useMemo(() => URL.createObjectURL(file), [file]);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  return html`<img class="pg-thumbnail" src=${address} alt=${file.name} />`;
}

/** Return a picture of a star as a file. */
async function exampleFile() {
  const canvas = new OffscreenCanvas(EXAMPLE_SIDE, EXAMPLE_SIDE);
  const context = canvas.getContext("2d");
  context.fillStyle = "#d9e4ea";
  context.fillRect(0, 0, EXAMPLE_SIDE, EXAMPLE_SIDE);
  context.fillStyle = "#c0392b";
  context.beginPath();
  for (let corner = 0; corner < 2 * POINTS; corner += 1) {
    const radius = EXAMPLE_SIDE * (corner % 2 ? 0.15 : 0.38);
    const angle = (corner * Math.PI) / POINTS - Math.PI / 2;
    context.lineTo(EXAMPLE_SIDE / 2 + radius * Math.cos(angle), EXAMPLE_SIDE / 2 + radius * Math.sin(angle));
  }
  context.fill();
  return new File([await canvas.convertToBlob({ type: "image/png" })], "star.png", { type: "image/png" });
}
