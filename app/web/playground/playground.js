// The playground: one model, and the tools that fit its task. A tool is loaded when it is first shown.
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { getJson, modelPath } from "../lib/api.js";
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { onKey } from "../lib/key.js";
import { link } from "../lib/router.js";
import { meaningOf, toolsOf } from "./tools.js";

export function Playground({ name, query }) {
  const [models, error, reload] = useLoaded(() => getJson("models").then(withCapabilities), []);
  if (error) return html`<h1>Playground</h1><${ErrorNotice} error=${error} onRetry=${reload} />`;
  if (!models) return html`<h1>Playground</h1><${Busy} />`;
  if (name === null) return html`<${Chooser} models=${models} />`;
  return html`<${ModelPlayground} key=${name} name=${name} models=${models} tool=${query.tool} />`;
}

/** Load a value when `inputs` change, and again with another key: `[value, error, reload]`. */
function useLoaded(load, inputs) {
  const [state, setState] = useState([null, null]);
  const [count, setCount] = useState(0);
  const reload = () => setCount((before) => before + 1);
  useEffect(() => onKey(reload), []);
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (value) => { if (isCurrent) setState([value, null]); },
      (error) => { if (isCurrent) setState([null, error]); },
    );
    return () => { isCurrent = false; };
  }, [...inputs, count]);
  return [...state, reload];
}

/** Return the models of a list, each with its capabilities and its context, which the list has in a second form. */
function withCapabilities({ models, data }) {
  const byName = new Map(data.map((each) => [each.id, each]));
  return models.map((model) => {
    const { capabilities = [], max_model_len: contextTokens = null } = byName.get(model.name) ?? {};
    return { ...model, capabilities, contextTokens };
  });
}

function Chooser({ models }) {
  return html`
    <div class="view-head"><h1>Playground</h1><span class="detail">Choose a model to try.</span></div>
    ${models.length === 0 ? html`<section class="panel"><${Empty} title="No model is registered.">
      <p>Add one to the configuration, or register it in <a href=${link("models")}>Models</a>.</p><//></section>` : html`
    <ul class="pg-cards">${models.map((model) => html`<li key=${model.name}>
      <a class="panel pg-card" href=${link("playground", model.name)}>
        <strong>${model.name}</strong>
        <span class="detail">${model.task ? meaningOf(model) : `${model.state}: not loaded`}</span>
        <span class="detail">${toolsOf(model).map((tool) => tool.label).join(" · ")}</span>
      </a></li>`)}</ul>`}`;
}

function ModelPlayground({ name, models, tool: wanted }) {
  // An adapter is named as model:adapter, and has the task of its base.
  const base = useMemo(() => baseOf(name, models), [name, models]);
  const [model, error, reload] = useLoaded(() => getJson(modelPath(base)), [base]);
  const head = html`<${Head} name=${name} models=${models} adapters=${model?.adapters ?? []} base=${base} />`;
  if (error) return html`${head}<${ErrorNotice} error=${error} onRetry=${reload} />`;
  if (!model) return html`${head}<${Busy} />`;
  const tools = toolsOf(model);
  if (tools.length === 0) {
    return html`${head}<section class="panel"><${Empty} title=${`${name} is not loaded (${model.state}).`}>
      <p>${model.reason ?? "What it can do is known when it is loaded."}</p>
      <p><a href=${link("models", base)}>Load it in Models</a>, then
        <button type="button" class="plain" onClick=${reload}>look again</button></p>
    <//></section>`;
  }
  const tool = tools.find((each) => each.id === wanted) ?? tools[0];
  return html`${head}
    <nav class="pg-tools" aria-label="Tools"><ul>${tools.map((each) => html`<li key=${each.id}>
      <a href=${link("playground", name, { tool: each.id })}
        aria-current=${each === tool ? "page" : null}>${each.label}</a></li>`)}</ul></nav>
    <${Tool} key=${tool.id} tool=${tool} model=${model} name=${name} models=${models} />`;
}

function Head({ name, models, adapters, base }) {
  const names = models.map((model) => model.name);
  const of = adapters.map((adapter) => `${base}:${adapter.name}`);
  const all = names.flatMap((each) => (each === base ? [each, ...of] : [each]));
  const change = (event) => { location.hash = link("playground", event.currentTarget.value); };
  return html`<div class="view-head pg-head"><h1>Playground</h1>
    <div class="pg-model">
      <select aria-label="Model" value=${name} onChange=${change}>
        ${all.includes(name) ? null : html`<option>${name}</option>`}
        ${all.map((each) => html`<option key=${each}>${each}</option>`)}
      </select></div></div>`;
}

function Tool({ tool, model, name, models }) {
  const [View, error, reload] = useLoaded(() => tool.load().then((view) => () => view), [tool.id]);
  if (error) return html`<${ErrorNotice} error=${error} title="The tool could not be loaded" onRetry=${reload} />`;
  if (!View) return html`<${Busy} />`;
  const Current = View();
  return html`<${Current} model=${model} name=${name} models=${models} />`;
}

function baseOf(name, models) {
  if (models.some((model) => model.name === name)) return name;
  const at = name.lastIndexOf(":");
  return at > 0 && models.some((model) => model.name === name.slice(0, at)) ? name.slice(0, at) : name;
}
