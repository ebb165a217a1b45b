// The order to a model that is in progress, or how the last one ended.
import { ErrorNotice, Notice } from "./message.js";
import { actions, dismiss } from "../lib/actions.js";
import { formatBytes, formatDuration } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";

/** `download`: {received_bytes, total_bytes} of the model's version that is fetched, or null. */
export function ActionProgress({ name, download = null }) {
  const action = useObservable(actions).get(name);
  if (!action) return null;
  if (action.error) {
    return html`<div class="with-close"><${ErrorNotice} error=${action.error} title="${action.label} failed" />
      <button type="button" onClick=${() => dismiss(name)}>Dismiss</button></div>`;
  }
  if (action.note) {
    return html`<div class="with-close"><${Notice} kind="good"><p>${action.label}: done. ${action.note}</p><//>
      <button type="button" onClick=${() => dismiss(name)}>Dismiss</button></div>`;
  }
  if (action.done) return html`<${Notice} kind="good"><p>${action.label}: done.</p><//>`;
  return html`<${Notice} kind="wait">
    <p class="busy-line"><span class="spinner" aria-hidden="true"></span>${action.label} … <${Elapsed} since=${action.startedAt} /></p>
    ${download?.total_bytes ? html`<p><progress max=${download.total_bytes} value=${download.received_bytes}></progress>
      <span class="detail">${formatBytes(download.received_bytes)} of ${formatBytes(download.total_bytes)} downloaded</span></p>` : null}
  <//>`;
}

/** Whole seconds since a moment of `performance.now()`. A screen reader is not told each second. */
function Elapsed({ since }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((count) => count + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((performance.now() - since) / 1000);
  return html`<span aria-hidden="true">${seconds < 1 ? "" : formatDuration(seconds).replace(/\.\d+ s/, " s")}</span>`;
}
