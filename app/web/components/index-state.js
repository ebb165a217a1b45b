// The state of the index of a collection, with the progress of a build.
import { useIndexWork } from "../lib/collections.js";
import { formatNumber, formatPercent } from "../lib/format.js";
import { html } from "../lib/html.js";

const INDEX_STATES = { none: ["off", "no index"], building: ["wait", "building"], ready: ["good", "ready"], missed: ["off", "not used"], failed: ["bad", "failed"] };

/** The state of an index of the collection `name` as a word, with its recall and the progress of a build. */
export function IndexState({ name, index }) {
  const [kind, label] = INDEX_STATES[index.state] ?? ["off", index.state];
  const work = useIndexWork(name);
  return html`<span class="state state-${kind}" title=${index.reason} data-state=${index.state}>${label}
    ${index.state === "ready" && index.recall !== null ? ` · recall ${formatPercent(index.recall)}` : ""}</span>
    ${work ? html` <span class="detail index-work">${workText(work)}
      ${work.total ? html`<progress aria-label="Build of the index of ${name}" max=${work.total} value=${work.done}></progress>` : null}</span>` : null}`;
}

function workText({ what, done, total, unit }) {
  const count = total ? `${formatNumber(done)} of ${formatNumber(total)} ${unit}` : "";
  return [what, count].filter(Boolean).join(", ");
}
