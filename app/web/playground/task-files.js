// The file of a task: a picture, a sound or a video; and a tone to begin with.
import { html } from "../lib/html.js";
import { ImageField, Thumbnail } from "./image-files.js";
import { Field } from "./parts.js";

const LABELS = { audio: "Sound", video: "Video" };
const TONE = { rate: 16_000, seconds: 1, hertz: 440 };
const WAV_HEADER_BYTES = 44;

/** A field for files of one kind, with those that were chosen. `wanted`: how many an input has. `onAdd([File])`. */
export function FileField({ kind, files, wanted, onAdd }) {
  return html`
    ${kind === "image" ? html`<${ImageField} label=${wanted > 1 ? "Two pictures" : "Picture"} onAdd=${onAdd} />`
      : html`<${MediaField} kind=${kind} onAdd=${onAdd} />`}
    ${files.length ? html`<ul class="pg-thumbnails">${files.map((file, at) => html`<li key=${`${at}-${file.name}`}>
      ${kind === "image" ? html`<${Thumbnail} file=${file} />` : null}
      <span class="detail pg-cut" title=${file.name}>${file.name}</span></li>`)}</ul>` : null}`;
}

function MediaField({ kind, onAdd }) {
  const choose = (event) => { onAdd([...event.currentTarget.files]); event.currentTarget.value = ""; };
  return html`<div class="pg-drop">
    <${Field} label=${LABELS[kind]} render=${(id) => html`
      <span class="button pg-file">Choose<input id=${id} type="file" accept=${`${kind}/*`} onChange=${choose} /></span>`} />
    ${kind === "audio" ? html`<button type="button" onClick=${() => onAdd([tone()])}>Make a tone</button>` : null}
  </div>`;
}

/** Return a tone as a WAV file: one channel of 16-bit samples. */
function tone() {
  const samples = TONE.rate * TONE.seconds;
  const view = new DataView(new ArrayBuffer(WAV_HEADER_BYTES + 2 * samples));
  const write = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, TONE.rate, true);
  view.setUint32(28, 2 * TONE.rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * samples, true);
  for (let at = 0; at < samples; at += 1) {
    view.setInt16(WAV_HEADER_BYTES + 2 * at, 16_000 * Math.sin((2 * Math.PI * TONE.hertz * at) / TONE.rate), true);
  }
  return new File([view.buffer], "tone.wav", { type: "audio/wav" });
}
