// The prediction of a task: boxes and masks on the picture, words marked in their text, scores as bars, else JSON.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { percent } from "./numbers.js";
import { ShareBars } from "./parts.js";

const MAX_DRAWN = 50;
const MAX_CHARACTERS = 20_000;
const SERIES = 6;

/** `prediction`: of one input. `sent`: the request, with the text or the file of that input. */
export function TaskAnswer({ prediction, sent }) {
  const list = Array.isArray(prediction) ? prediction : [prediction];
  const first = list[0];
  if (first === undefined || first.masks?.length === 0) return html`<p class="empty">Nothing was found.</p>`;
  // Several masks of one text have a list each.
  if (Array.isArray(first) && first[0]?.score !== undefined) {
    return list.map((each, at) => html`<div key=${at} class="pg-prediction"><${TaskAnswer} prediction=${each} sent=${sent} /></div>`);
  }
  const file = sent.form?.files[0];
  if (first.box) return html`<${Drawn} file=${file} layer=${html`<${Boxes} objects=${list} />`} /><${Scores} label="Objects" rows=${list} />`;
  if (first.mask) return html`<${Segments} file=${file} segments=${list} />`;
  if (first.masks) return html`<${Segments} file=${file} segments=${segmentsOf(first)} />`;
  if (first.depth) return html`<img class="pg-picture" src=${pngOf(first.depth)} alt="Depth" />`;
  const text = sent.body?.text.context ?? sent.body?.text;
  if (typeof text === "string" && Number.isInteger(first.start)) {
    return html`<${Words} words=${list} text=${text} /><${Scores} label="Words" rows=${list} />`;
  }
  const rows = first.labels ? first.labels.map((label, at) => ({ label, score: first.scores[at] })) : list;
  if (rows.every((row) => typeof row?.score === "number" && nameOf(row) !== undefined)) return html`<${Scores} label="Labels" rows=${rows} />`;
  return html`<pre class="pg-snippet" tabindex="0" aria-label="JSON">${JSON.stringify(prediction, null, 2).slice(0, MAX_CHARACTERS)}</pre>`;
}

const pngOf = (base64) => `data:image/png;base64,${base64}`;
const seriesOf = (at) => `var(--series-${1 + (at % SERIES)})`;

/** Return the masks of a whole picture, or those of each object that was asked for, as segments with a label. */
function segmentsOf({ masks, scores }) {
  return masks.flatMap((own, at) => {
    const label = `Object ${at + 1}`;
    if (!Array.isArray(own)) return { mask: own, label, score: scores[at] };
    return own.map((mask, number) => ({ mask, label: `${label}, mask ${number + 1}`, score: scores[at][number] }));
  });
}

/** Return the name of a row of any task, or undefined where it has none. */
function nameOf({ label, token_str: token, answer, word, entity_group: group, entity }) {
  return word === undefined ? label ?? token ?? answer : `${word} (${group ?? entity})`;
}

function Scores({ rows, label }) {
  const drawn = rows.slice(0, MAX_DRAWN);
  const bars = drawn.map((row, at) => ({ key: at, label: nameOf(row), share: row.score, text: percent(row.score), strong: at === 0 }));
  return html`<${ShareBars} label=${label} rows=${bars} />
    ${rows.length > MAX_DRAWN ? html`<p class="detail">and ${rows.length - MAX_DRAWN} more</p>` : null}`;
}

/** A picture with a layer over it. The view box of the layer has the size of the picture. */
function Drawn({ file, layer }) {
  const [size, setSize] = useState(null);
  const address = useMemo(() => URL.createObjectURL(file), [file]);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  const note = ({ currentTarget: image }) => setSize([image.naturalWidth, image.naturalHeight]);
  return html`<div class="pg-picture"><img src=${address} alt=${file.name} onLoad=${note} />
    ${size && html`<svg viewBox=${`0 0 ${size.join(" ")}`} preserveAspectRatio="none" aria-hidden="true">${layer}</svg>`}</div>`;
}

function Boxes({ objects }) {
  return objects.slice(0, MAX_DRAWN).map(({ box }, at) => html`<rect key=${at} x=${box.xmin} y=${box.ymin} width=${box.xmax - box.xmin}
    height=${box.ymax - box.ymin} style=${{ stroke: seriesOf(at) }} />`);
}

/** Each segment in a colour on the picture, then its mask, label and score. A semantic segment has no score. */
function Segments({ segments, file }) {
  const drawn = segments.slice(0, MAX_DRAWN);
  const layer = drawn.map(({ mask }, at) => html`<mask key=${`mask-${at}`} id=${`pg-mask-${at}`}><image href=${pngOf(mask)} width="100%" height="100%" /></mask>
    <rect key=${at} class="pg-segment" width="100%" height="100%" mask=${`url(#pg-mask-${at})`} style=${{ fill: seriesOf(at) }} />`);
  return html`<${Drawn} file=${file} layer=${layer} />
    <ul class="pg-thumbnails">${drawn.map(({ mask, label, score }, at) => html`<li key=${at}>
      <img class="pg-thumbnail" style=${{ borderBottom: `4px solid ${seriesOf(at)}` }} src=${pngOf(mask)} alt=${`Mask of ${label}`} />
      <span class="detail pg-cut" title=${label}>${label}${score === null ? "" : ` ${percent(score)}`}</span></li>`)}</ul>
    ${segments.length > MAX_DRAWN ? html`<p class="detail">and ${segments.length - MAX_DRAWN} more</p>` : null}`;
}

/** A text with its words marked. Positions count code points; of words that overlap, the first is marked. */
function Words({ words, text }) {
  const points = [...text];
  const parts = [];
  let at = 0;
  for (const { start, end, entity_group: group, entity } of [...words].sort((one, other) => one.start - other.start)) {
    if (start < at || end <= start) continue;
    const label = group ?? entity;
    parts.push(points.slice(at, start).join(""));
    parts.push(html`<mark key=${start}>${points.slice(start, end).join("")}${label ? html` <small>${label}</small>` : null}</mark>`);
    at = end;
  }
  return html`<p class="pg-words">${parts}${points.slice(at).join("")}</p>`;
}
