// One model: its traffic, versions, tensors and quantization.
import { StackedBar } from "../components/bar.js";
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { ActionProgress } from "../components/progress.js";
import { Scroll } from "../components/scroll.js";
import { State } from "../components/state.js";
import { describe } from "../lib/descriptions.js";
import { NONE, formatBytes, formatCount, formatNumber, formatPercent } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useModel } from "../lib/models.js";
import { useCanManage } from "../lib/rights.js";
import { link } from "../lib/router.js";
import { ModelButtons } from "./model-actions.js";
import { CanaryForm, ShadowForm } from "./traffic.js";
import { Versions } from "./versions.js";

export function ModelView({ name }) {
  const { detail, error } = useModel(name);
  const download = Object.values(detail?.version_details ?? {}).find((version) => version.download)?.download;
  return html`
    <p class="crumbs"><a href=${link("models")}>Models</a></p>
    <div class="view-head"><h1>${name}</h1>
      ${detail ? html`<${State} state=${detail.state} reason=${detail.reason} /><span class="muted">${describe(detail)}</span>` : null}
      <span class="spacer"></span>
      ${detail ? html`<div class="row">
        <${ModelButtons} model=${detail} onDeleted=${() => { location.hash = link("models"); }} />
        ${detail.state === "ready" ? html`<a class="button primary" href=${link("playground", name)}>Try it</a>` : null}</div>` : null}
    </div>
    <${ActionProgress} name=${name} download=${download} />
    ${error ? html`<${ErrorNotice} error=${error} title=${error.status === 404 ? "There is no such model" : "The model could not be read"} />` : null}
    ${detail === null && !error ? html`<${Busy}>Loading ${name}<//>` : null}
    ${detail ? html`<${Detail} detail=${detail} />` : null}`;
}

function Detail({ detail }) {
  const canManage = useCanManage();
  const versions = Object.keys(detail.version_details);
  return html`
    ${detail.reason ? html`<div class="notice notice-error"><p><strong>Failed.</strong> ${detail.reason}</p></div>` : null}
    <div class="panels panels-fit two-columns">
      <div class="column"><section class="panel"><h2>At a glance</h2><${Glance} detail=${detail} /></section>
        ${detail.quantization ? html`<section class="panel"><h2>Quantization</h2><${Quantization} value=${detail.quantization} /></section>` : null}
      </div>
      <section class="panel"><h2>Traffic</h2><${Traffic} detail=${detail} />
        ${canManage && versions.length > 1 ? html`<${CanaryForm} detail=${detail} /><${ShadowForm} detail=${detail} />` : null}
        ${canManage && versions.length < 2 ? html`<p class="detail">A canary or a shadow version needs a second version of the model.</p>` : null}
      </section>
    </div>
    <section class="panel"><h2>Versions</h2><${Versions} detail=${detail} /></section>
    <div class="panels panels-fit">
      <section class="panel"><h2>Inputs</h2><${Tensors} tensors=${detail.inputs} label="Inputs" /></section>
      <section class="panel"><h2>Outputs</h2><${Tensors} tensors=${detail.outputs} label="Outputs" /></section>
      ${detail.adapters.length ? html`<section class="panel"><h2>Adapters</h2><${Adapters} adapters=${detail.adapters} /></section>` : null}
    </div>`;
}

/** Terms and values, one pair in a row. */
export function Facts({ facts }) {
  return html`<dl class="fact-list">${facts.map(([term, value]) => html`<div key=${term}><dt>${term}</dt><dd>${value ?? NONE}</dd></div>`)}</dl>`;
}

function Glance({ detail }) {
  const { requests } = detail;
  const active = detail.version_details[detail.active_version];
  return html`<${Facts} facts=${[
    ["Aliases", detail.aliases.length ? detail.aliases.join(", ") : null],
    ["Active version", detail.active_version],
    ["Memory", formatBytes(detail.memory_bytes)],
    ["Requests", `${formatCount(requests.total)}, of which ${formatCount(requests.failed)} failed`],
    ["In progress", formatCount(requests.inflight)],
    ["Last used", detail.last_used ? new Date(detail.last_used).toLocaleString("en-GB") : "never"],
    ["Warm-up", detail.warm_up],
    ["Batching", active ? `${active.batching}, at most ${active.max_batch_size}` : null],
    ["Longest text", active?.max_tokens ? `${formatCount(active.max_tokens)} tokens` : null],
    ["Attention", detail.attention],
  ].filter(([, value]) => value !== null && value !== undefined)} />`;
}

function Traffic({ detail }) {
  const canary = detail.canary?.percent ?? 0;
  const parts = [{ label: `version ${detail.active_version}`, value: 100 - canary, series: 1 }];
  if (canary) parts.push({ label: `canary ${detail.canary.version}`, value: canary, series: 2 });
  return html`<${StackedBar} label="Share of requests without a version" total=${100} parts=${parts}
      format=${(value) => formatPercent(value / 100)} />
    ${detail.shadow ? html`<p>Version <strong>${detail.shadow.version}</strong> gets copies of
      ${" "}${formatPercent(detail.shadow.percent / 100)} of the requests. Its responses are compared and dropped.</p>` : null}`;
}

function Tensors({ tensors, label }) {
  if (tensors === null) return html`<${Empty} title="Known when the model is loaded." />`;
  if (tensors.length === 0) return html`<p class="muted">None: this model reads text.</p>`;
  return html`<${Scroll} label=${label}><table><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Shape</th></tr></thead>
    <tbody>${tensors.map((tensor) => html`<tr key=${tensor.name}><td><code>${tensor.name}</code></td><td>${tensor.dtype}</td>
      <td class="mono">${shapeText(tensor.shape)}</td></tr>`)}</tbody></table><//>`;
}

/** A shape as text; `*` is a free dimension. */
export function shapeText(shape) {
  return shape === null ? "any" : `[${shape.map((size) => (size < 0 ? "*" : size)).join(", ")}]`;
}

function Quantization({ value }) {
  return html`<${Facts} facts=${[
    ["Scheme", value.scheme], ["Kernel", value.kernel],
    ["Lowest cosine", formatNumber(value.cosine_min)],
    ["Speed", `${formatNumber(value.speedup)} times the original's`],
    ["Weights", `${formatBytes(value.bytes_after)}, before ${formatBytes(value.bytes_before)}`],
    ...(value.perplexity ? [["Perplexity", `${formatNumber(value.perplexity)}, original ${formatNumber(value.perplexity_original)}`]] : []),
  ]} />`;
}

function Adapters({ adapters }) {
  return html`<${Scroll} label="Adapters"><table><thead><tr><th scope="col">Name</th><th scope="col" class="number">Rank</th><th scope="col" class="number">Memory</th></tr></thead>
    <tbody>${adapters.map((adapter) => html`<tr key=${adapter.name}><td><code>${adapter.name}</code></td>
      <td class="number">${adapter.rank ?? NONE}</td><td class="number">${formatBytes(adapter.memory_bytes)}</td></tr>`)}</tbody></table><//>`;
}

