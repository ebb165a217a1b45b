// The registered models as cards, and one model in detail.
import { Busy, Empty } from "../components/message.js";
import { ActionProgress } from "../components/progress.js";
import { State } from "../components/state.js";
import { actions } from "../lib/actions.js";
import { describe } from "../lib/descriptions.js";
import { formatBytes, formatCount } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { useCanManage } from "../lib/rights.js";
import { link } from "../lib/router.js";
import { models, sample } from "../lib/server.js";
import { ModelButtons } from "./model-actions.js";
import { ModelView } from "./model.js";
import { RegisterDialog } from "./register.js";

export function Models({ name }) {
  return name === null ? html`<${ModelList} />` : html`<${ModelView} key=${name} name=${name} />`;
}

function ModelList() {
  const list = useObservable(models);
  const live = useObservable(sample)?.models ?? {};
  const running = useObservable(actions);
  const [registers, setRegisters] = useState(false);
  const canManage = useCanManage();
  return html`
    <div class="view-head"><h1>Models</h1>
      ${list ? html`<span class="muted">${list.length} registered, ${list.filter((model) => model.state === "ready").length} ready</span>` : null}
      <span class="spacer"></span>
      ${canManage ? html`<button type="button" class="primary" onClick=${() => setRegisters(true)}>Register a model</button>` : null}
    </div>
    ${list === null ? html`<${Busy}>Waiting for the server<//>` : null}
    ${list?.length === 0 ? html`<div class="panel"><${Empty} title="No model is registered.">
      ${canManage ? "Register one from the folders of the server." : "A key with the scope manage can register one."}<//></div>` : null}
    ${unlisted(running, list).map((name) => html`<section key=${name} class="unlisted"><h2>${name}</h2><${ActionProgress} name=${name} /></section>`)}
    <ul class="panels cards">${(list ?? []).map((model) => html`<${Card} key=${model.name} model=${model} live=${live[model.name] ?? {}} />`)}</ul>
    ${registers ? html`<${RegisterDialog} onClose=${() => setRegisters(false)} />` : null}`;
}

/** Models with an order that are not in the list: a registration goes on or failed after its dialog was closed. */
function unlisted(running, list) {
  const known = new Set((list ?? []).map(({ name }) => name));
  return [...running.keys()].filter((name) => !known.has(name));
}

function Card({ model, live }) {
  return html`<li class="panel card" data-model=${model.name}>
    <div class="card-head"><h2><a href=${link("models", model.name)}>${model.name}</a></h2><${State} state=${model.state} reason=${model.reason} /></div>
    <p class="detail">${describe(model)}</p>
    <dl class="facts">
      <div><dt>Memory</dt><dd>${formatBytes(model.memory_bytes)}</dd></div>
      <div><dt>Versions</dt><dd>${Object.keys(model.versions).join(", ") || "none"}</dd></div>
      <div><dt>Requests</dt><dd>${formatCount(live.requests_total)}</dd></div>
      <div><dt>Failed</dt><dd>${formatCount(live.failed_total)}</dd></div>
      <div><dt>In progress</dt><dd>${formatCount(live.inflight)}</dd></div>
    </dl>
    ${model.reason ? html`<p class="reason">${model.reason}</p>` : null}
    <${ActionProgress} name=${model.name} download=${downloadOf(model)} />
    <div class="row card-foot"><${ModelButtons} model=${model} />
      ${model.state === "ready" ? html`<a class="button" href=${link("playground", model.name)}>Try it</a>` : null}</div>
  </li>`;
}

function downloadOf({ versions }) {
  return Object.values(versions).find((version) => version.download)?.download ?? null;
}
