// The state of a model as a drawing and a word, so that colour alone says nothing.
import { Icon } from "./icons.js";
import { html } from "../lib/html.js";

const STATES = {
  ready: ["good", "good"], healthy: ["good", "good"],
  loading: ["wait", "wait"], draining: ["wait", "wait"], starting: ["wait", "wait"],
  failed: ["bad", "bad"], degraded: ["bad", "bad"],
};

/** `state`: of a model, a version or the server. `reason`: of a failure, shown on hover and read aloud. */
export function State({ state, reason = null }) {
  const [kind, icon] = STATES[state] ?? ["off", "off"];
  return html`<span class="state state-${kind}" title=${reason} data-state=${state}><${Icon} name=${icon} />${state}
    ${reason ? html`<span class="visually-hidden">: ${reason}</span>` : null}</span>`;
}
