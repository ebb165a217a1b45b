// Files of pictures: chosen, dropped or pasted; and a drawn one to begin with.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { Field } from "./parts.js";

const TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/avif"];
const EXAMPLE_SIDE = 256;
const POINTS = 5;

/** Kinds of files of pictures, in words. */
export const KINDS = "JPEG, PNG, WebP, GIF, BMP or AVIF";

/**
 * Take files of pictures that are dropped on an element, or pasted anywhere: `{isOver, target, add}`.
 *
 * `target`: properties of the element. `add(files)`: takes chosen ones. `onAdd([File], [File])`: pictures, and other
 * files; null takes none.
 */
export function usePictureFiles(onAdd) {
  const [isOver, setOver] = useState(false);
  const add = (list) => {
    const [pictures, others] = [true, false].map((isWanted) => [...list].filter((file) => TYPES.includes(file.type) === isWanted));
    if (pictures.length + others.length > 0) onAdd(pictures, others);
  };
  useEffect(() => {
    if (!onAdd) return undefined;
    const paste = (event) => add(event.clipboardData?.files ?? []);
    addEventListener("paste", paste);
    return () => removeEventListener("paste", paste);
  });
  // A dragged text goes into the field below the pointer.
  const withFiles = (task) => (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    task(event);
  };
  const target = onAdd && {
    onDragOver: withFiles(() => setOver(true)),
    onDragLeave: () => setOver(false),
    onDrop: withFiles((event) => { setOver(false); add(event.dataTransfer.files); }),
  };
  return { isOver, target: target ?? {}, add };
}

/** A field that takes files of pictures by a button, by dropping, and by pasting. `onAdd([File])`. */
export function ImageField({ label, onAdd }) {
  const { isOver, target, add } = usePictureFiles((files) => { if (files.length) onAdd(files); });
  return html`<div class=${`pg-drop ${isOver ? "pg-drop-over" : ""}`} ...${target}>
    <${Field} label=${label} hint=${`${KINDS}; drop or paste them, too`} render=${(id, hint) => html`
      <${ChooseFiles} id=${id} aria-describedby=${hint} onChoose=${add}>Choose<//>`} />
    <button type="button" onClick=${async () => onAdd([await exampleFile()])}>Draw an example</button>
  </div>`;
}

/** A button that chooses files of pictures. `onChoose(files)`. Other properties are those of its input. */
export function ChooseFiles({ onChoose, children, ...others }) {
  const choose = (event) => { onChoose(event.currentTarget.files); event.currentTarget.value = ""; };
  return html`<span class="button pg-file">${children}<input type="file" multiple accept=${TYPES.join(",")} onChange=${choose} ...${others} /></span>`;
}

/** A small view of a picture: of a file, or of `{name, url}`. */
export function Thumbnail({ file }) {
  const address = useMemo(() => file.url ?? URL.createObjectURL(file), [file]);
  useEffect(() => () => { if (!file.url) URL.revokeObjectURL(address); }, [address]);
  return html`<img class="pg-thumbnail" src=${address} alt=${file.name} />`;
}

/** Small views of pictures, each with a button that removes it. `onRemove(file)`. Other properties are those of the list. */
export function Thumbnails({ files, onRemove, ...others }) {
  return html`<ul class="pg-thumbnails" ...${others}>${files.map((file, at) => html`<li key=${`${at}-${file.name}`}>
    <${Thumbnail} file=${file} /><span class="detail pg-cut" title=${file.name}>${file.name}</span>
    <button type="button" class="plain" aria-label=${`Remove ${file.name}`} onClick=${() => onRemove(file)}>Remove</button></li>`)}</ul>`;
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
