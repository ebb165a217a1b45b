// Forms that give a version a share of the traffic, or copies of it.
import { StackedBar } from "../components/bar.js";
import { actions, order } from "../lib/actions.js";
import { formatCount } from "../lib/format.js";
import { html, useEffect, useId, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { sample } from "../lib/server.js";

export function CanaryForm({ detail }) {
  return html`<${ShareForm} detail=${detail} kind="canary" title="Canary" startPercent=${5}
    help="This share of the requests without a version is answered by it." />`;
}

export function ShadowForm({ detail }) {
  return html`<${ShareForm} detail=${detail} kind="shadow" title="Shadow" startPercent=${100}
      help="Copies of this share of the requests go to it at the lowest priority." />
    <${ShadowOutcomes} name=${detail.name} />`;
}

function ShareForm({ detail, kind, title, startPercent, help }) {
  const current = detail[kind];
  const others = Object.keys(detail.version_details).filter((version) => version !== detail.active_version);
  const [version, setVersion] = useState(current?.version ?? others.at(-1));
  const [percent, setPercent] = useState(current?.percent ?? startPercent);
  const busy = useObservable(actions).get(detail.name)?.done === false;
  const id = useId();
  useEffect(() => {
    if (current) { setVersion(current.version); setPercent(current.percent); }
  }, [current?.version, current?.percent]);
  useEffect(() => { if (!others.includes(version)) setVersion(others.at(-1)); }, [others.join()]);
  const send = (event) => {
    event.preventDefault();
    order(detail.name, `${title} of ${percent} % to version ${version}`, "POST", "/load", { [kind]: { version, percent } });
  };
  const end = () => order(detail.name, `Ending the ${kind}`, "POST", "/load", { [kind]: null });
  return html`<form class="share-form" onSubmit=${send} aria-label=${title}>
    <h3>${title}</h3>
    <p class="detail" id="${id}-help">${help}</p>
    <div class="share-fields">
      <label for="${id}-version">Version</label>
      <select id="${id}-version" value=${version} onChange=${(event) => setVersion(event.target.value)}>
        ${others.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
      <label for="${id}-percent">Share</label>
      <input id="${id}-percent" type="range" min="0" max="100" step="1" value=${percent} aria-describedby="${id}-help"
        onInput=${(event) => setPercent(Number(event.target.value))} />
      <span class="row"><input class="short" type="number" min="0" max="100" step="any" value=${percent} aria-label="${title} share in percent"
        onInput=${(event) => setPercent(clamp(event.target.value))} /> %</span>
    </div>
    <div class="row"><button type="submit" disabled=${busy}>${current ? "Change" : "Start"} ${kind}</button>
      ${current ? html`<button type="button" disabled=${busy} onClick=${end}>End ${kind}</button>` : null}</div>
  </form>`;
}

const clamp = (text) => Math.min(100, Math.max(0, Number(text) || 0));

const OUTCOMES = [["same", "agree", 3], ["different", "differ", 2], ["failed", "failed", 5], ["dropped", "not compared", "rest"]];

/** Comparison of the copies with the answers of the active version, while there is a shadow. */
function ShadowOutcomes({ name }) {
  const outcomes = useObservable(sample)?.models[name]?.shadow;
  if (!outcomes) return null;
  const parts = OUTCOMES.map(([name, label, series]) => ({ label, series, value: outcomes[name] ?? 0 }));
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  if (total === 0) return html`<p class="detail">No response has been compared yet.</p>`;
  return html`<p class="detail compared">Compared responses</p><${StackedBar} label="Compared responses" total=${total} parts=${parts} format=${formatCount} />`;
}
