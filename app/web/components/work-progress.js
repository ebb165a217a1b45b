// Long work of the server that runs now: compilations, loads, downloads, quantisation and builds of indexes.
import { formatBytes, formatDuration, formatNumber } from "../lib/format.js";
import { html } from "../lib/html.js";

const VERBS = {
  compile: "Compiling for",
  load: "Loading",
  download: "Downloading",
  quantize: "Quantising",
  index: "Building the index of",
};

/** `works`: `progress` of the sample. Shows nothing where no work runs. */
export function WorkProgress({ works }) {
  if (!works?.length) return null;
  return html`<section class="panel works" aria-label="Work in progress"><h2>In progress</h2>
    ${works.map((work, index) => html`<${Work} key=${`${work.kind} ${work.name} ${index}`} work=${work} />`)}</section>`;
}

function Work({ work }) {
  const { kind, name, what, done, total, seconds } = work;
  const label = `${VERBS[kind] ?? kind} ${name}`;
  const details = [what, total ? countOf(work) : "", formatDuration(seconds)].filter(Boolean);
  return html`<div class="work"><p class="busy-line"><span class="spinner" aria-hidden="true"></span>
      <span>${label} <span class="detail">${details.join(", ")}</span></span></p>
    ${total ? html`<progress aria-label=${label} max=${total} value=${done}></progress>` : null}</div>`;
}

function countOf({ done, total, unit }) {
  if (unit === "bytes") return `${formatBytes(done)} of ${formatBytes(total)}`;
  return `${formatNumber(done)} of ${formatNumber(total)} ${unit}`.trimEnd();
}
