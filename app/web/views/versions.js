// The versions of a model, and orders to one of them.
import { Confirm } from "../components/dialog.js";
import { Scroll } from "../components/scroll.js";
import { State } from "../components/state.js";
import { actions, order } from "../lib/actions.js";
import { formatBytes, formatCount, formatDuration } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { useCanManage } from "../lib/rights.js";
import { ConfirmUnload } from "./model-actions.js";

export function Versions({ detail }) {
  const [question, setQuestion] = useState(null);
  const busy = useObservable(actions).get(detail.name)?.done === false;
  const canManage = useCanManage();
  const close = () => setQuestion(null);
  return html`<${Scroll} label="Versions"><table>
    <thead><tr><th scope="col">Version</th><th scope="col">State</th><th scope="col" class="number">Memory</th><th scope="col">Device</th>
      <th scope="col" class="number">Loads</th><th scope="col" class="number">Load time</th><th scope="col">Path</th>
      ${canManage ? html`<th scope="col"><span class="visually-hidden">Orders</span></th>` : null}</tr></thead>
    <tbody>${Object.entries(detail.version_details).map(([version, each]) => html`<tr key=${version} data-version=${version}>
      <th scope="row" class="strong">${version} ${role(detail, version)}</th>
      <td><${State} state=${each.state} reason=${each.reason} /></td>
      <td class="number">${formatBytes(each.memory_bytes)}</td><td>${each.device ?? "–"}</td>
      <td class="number">${formatCount(each.loads)}</td><td class="number">${each.loads ? formatDuration(each.load_seconds) : "–"}</td>
      <td><code class="path" title=${each.path}>${each.path}</code></td>
      ${canManage ? html`<td class="cell-buttons">
        ${version !== detail.active_version ? html`<button type="button" disabled=${busy}
          onClick=${() => setQuestion({ kind: "switch", version })}>Switch traffic here</button>` : null}
        ${each.state === "ready" && version !== detail.active_version ? html`<button type="button" disabled=${busy}
          onClick=${() => setQuestion({ kind: "unload", version })}>Unload</button>` : null}
      </td>` : null}</tr>`)}</tbody></table><//>
    ${question?.kind === "switch" ? html`<${Confirm} title="Switch ${detail.name} to version ${question.version}?"
        action="Switch to ${question.version}" onClose=${close}
        onConfirm=${() => switchTo(detail.name, question.version)}>
      <p>Version <strong>${question.version}</strong> is loaded while version <strong>${detail.active_version}</strong> serves.
        Then all requests without a version switch to it, and the old version is unloaded.</p>
      <p>If the new version fails, the old one continues. An older version is only loaded where the model keeps several.</p><//>` : null}
    ${question?.kind === "unload" ? html`<${ConfirmUnload} model=${detail} version=${question.version} onClose=${close} />` : null}`;
}

/** The server decides by the model's version_policy whether an older version gets the traffic: the answer says so. */
function switchTo(name, version) {
  order(name, `Switching to version ${version}`, "POST", "/load", { version }, (answer) => (answer.active_version === version ? null
    : `Version ${version} is loaded. Version ${answer.active_version} keeps the traffic, as version_policy says.`));
}

function role(detail, version) {
  const roles = [
    [version === detail.active_version, "active"], [version === detail.previous_version, "previous"],
    [version === detail.canary?.version, "canary"], [version === detail.shadow?.version, "shadow"],
  ];
  return roles.filter(([holds]) => holds).map(([, label]) => html`<span key=${label} class="tag">${label}</span>`);
}
