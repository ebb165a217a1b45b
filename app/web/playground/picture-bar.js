// The pictures of the next message of a chat: their small views, the buttons that add some, and a square to draw one.
import { Dialog } from "../components/dialog.js";
import { Notice } from "../components/message.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { counted } from "./chat-pictures.js";
import { DrawPad, NO_DRAWING, drawingFile, isEmpty } from "./draw-pad.js";
import { ChooseFiles, Thumbnail, Thumbnails } from "./image-files.js";

/** `chosen`: of useChosenPictures. `isTooMany`: whether the next request has more pictures than a conversation may. */
export function ChosenPictures({ chosen, bounds, isTooMany }) {
  const { pictures, notes, isReading } = chosen;
  const element = useRef(null);
  const number = useRef(pictures.length);
  useEffect(() => {
    // The focused button is removed with its picture.
    if (pictures.length < number.current && document.activeElement === document.body) {
      (element.current.querySelector("button") ?? element.current.closest("form").querySelector("textarea")).focus();
    }
    number.current = pictures.length;
  }, [pictures.length]);
  const scaled = pictures.filter(({ whole }) => whole !== null);
  return html`<div class="pg-chosen-pictures" ref=${element}>
    ${pictures.length ? html`<${Thumbnails} files=${pictures} onRemove=${chosen.remove} aria-label="Pictures of the next message" />` : null}
    <div role="status">
      ${isReading ? html`<p class="detail">Reading the pictures …</p>` : null}
      ${scaled.map((each) => html`<p key=${each.name} class="detail">${scalingOf(each, bounds)}</p>`)}
      ${notes.map((note, at) => html`<p key=${at} class="field-error">${note}</p>`)}
      ${isTooMany ? html`<p class="field-error">A conversation has at most ${counted(bounds.max_images)}. Remove some, or begin another
        conversation.</p>` : null}
    </div></div>`;
}

function scalingOf({ name, width, height, whole }, bounds) {
  return `${name} is scaled down from ${whole.width} × ${whole.height} to ${width} × ${height} pixels. `
    + `The model reads at most ${bounds.max_image_pixels.toLocaleString("en-GB")} pixels.`;
}

/** Buttons that add pictures. `onChoose(files)`, `onDraw([File])`. */
export function PictureButtons({ onChoose, onDraw }) {
  const [isOpen, setOpen] = useState(false);
  return html`<${ChooseFiles} aria-label="Add pictures" title="Or paste or drop them" onChoose=${onChoose}>Add pictures<//>
    <button type="button" onClick=${() => setOpen(true)}>Draw</button>
    ${isOpen ? html`<${DrawDialog} onClose=${() => setOpen(false)} onDraw=${onDraw} />` : null}`;
}

function DrawDialog({ onClose, onDraw }) {
  const [drawing, setDrawing] = useState(NO_DRAWING);
  const add = async () => { onClose(); onDraw([await drawingFile(drawing)]); };
  return html`<${Dialog} title="Draw a picture" onClose=${onClose}>
    <${DrawPad} drawing=${drawing} onChange=${setDrawing} subject="a picture" />
    <footer class="actions">
      <button type="button" onClick=${onClose}>Cancel</button>
      <button type="button" class="primary" disabled=${isEmpty(drawing)} onClick=${add}>Add the drawing</button>
    </footer>
  <//>`;
}

/** The pictures of a message. Of those that the browser has not kept, only the names are here. */
export function SentPictures({ pictures }) {
  return html`<ul class="pg-sent-pictures" aria-label="Pictures of the message">${pictures.map((picture, at) => html`<li key=${at}>
    ${picture.url === null ? html`<span class="detail">${picture.name} is not kept</span>` : html`<${Thumbnail} file=${picture} />`}
  </li>`)}</ul>`;
}

/** Say which pictures a request lacks. `blind`: models that read none. `lost`: how many the browser has not kept. */
export function MissingPictures({ blind, lost }) {
  return html`
    ${blind.map((model) => html`<${Notice} key=${model} kind="wait"><p><strong>${model}</strong> reads no pictures. Those of this
      conversation are not sent to it.</p><//>`)}
    ${lost ? html`<${Notice} kind="wait"><p>The browser has not kept ${counted(lost)} of this conversation. Requests do not
      have ${lost === 1 ? "it" : "them"} any more.</p><//>` : null}`;
}
