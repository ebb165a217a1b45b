// The state of the server, its devices and models, and the last 15 minutes as charts.
import { Busy, Empty } from "../components/message.js";
import { State } from "../components/state.js";
import { WorkProgress } from "../components/work-progress.js";
import { CONNECTED } from "../lib/events.js";
import { formatCount, formatDuration, formatMs, formatNumber, formatRate } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { connection, hello, history, models, sample } from "../lib/server.js";
import { Charts } from "./overview-charts.js";
import { Devices } from "./overview-devices.js";
import { ModelTable } from "./overview-models.js";

export function Overview() {
  const greeting = useObservable(hello);
  const current = useObservable(sample);
  const list = useObservable(models);
  useObservable(history);
  const { phase } = useObservable(connection);
  if (greeting === null) {
    return html`<div class="view-head"><h1>Overview</h1></div>${phase === CONNECTED ? html`<${Busy}>Reading the state of the server<//>`
      : html`<div class="panel"><${Empty} title="The server has not answered yet.">The page connects by itself as soon as it does.<//></div>`}`;
  }
  return html`
    <div class="view-head"><h1>Overview</h1>
      ${phase === CONNECTED ? current && html`<${State} state=${current.state} />` : html`<span class="tag tag-bad">last known values</span>`}
      <span class="muted">${about(greeting, current)}</span></div>
    <${WorkProgress} works=${current?.progress} />
    <${Tiles} server=${current?.server} />
    <${Devices} devices=${current?.devices} models=${list} live=${current?.models} />
    <section class="panel"><h2>Models</h2><${ModelTable} models=${list} live=${current?.models} /></section>
    <${Charts} history=${history.value} caller=${greeting.caller} />`;
}

function about({ server, caller }, current) {
  const parts = [`version ${server.version.split("+")[0]}`];
  if (server.workers > 1) parts.push(`${server.workers} workers`);
  if (current) parts.push(`up for ${formatDuration(current.uptime_s)}`);
  parts.push(...Object.entries(server.labels ?? {}).map(([name, value]) => `${name} ${value}`));
  if (!caller.is_operator) parts.push(`numbers of tenant ${caller.tenant}`);
  return parts.join(" · ");
}

/** `server`: of the sample, undefined before the first one. Below it stand the totals since the start. */
function Tiles({ server }) {
  const totals = useObservable(sample)?.totals;
  const isOperator = useObservable(hello)?.caller.is_operator; // only these see batches
  const { requests_per_s: rate, failed_per_s: failed, refused_per_s: refused } = server ?? {};
  const tiles = [
    ["Requests", formatRate(rate), `${formatCount(server?.inflight)} in progress`, formatCount(totals?.requests)],
    ["Latency p50", formatMs(server?.p50_ms), `p99 ${formatMs(server?.p99_ms)}`, formatMs(totals?.p50_ms), `p99 ${formatMs(totals?.p99_ms)}`],
    ["Queue", formatCount(server?.queue), `waited ${formatMs(server?.queue_ms)}`, formatMs(totals?.queue_ms), "waited"],
    ["Failed", formatRate(failed), `refused ${formatRate(refused)}`, formatCount(totals?.failed), `refused ${formatCount(totals?.refused)}`, failed > 0],
    ["Tokens", formatRate(server?.tokens_per_s), `prompts ${formatRate(server?.prompt_tokens_per_s)}`,
      formatCount(totals?.tokens), `prompts ${formatCount(totals?.prompt_tokens)}`],
    ...(isOperator ? [["Rows of a batch", formatNumber(server?.batch_rows), `${formatRate(server?.batches_per_s)} batches and steps`,
      formatCount(totals?.rows), "rows in batches"]] : []),
  ];
  return html`<dl class="tiles" aria-label="Figures">${tiles.map(([label, value, note, total, totalNote, isBad]) => html`<div key=${label} class="panel tile ${isBad ? "tile-bad" : ""}">
    <dt>${label}</dt><dd class="tile-value">${value}</dd><dd class="detail">${note}</dd>
    <dd class="tile-total"><span class="detail">Since start</span> <span><strong>${total}</strong>${totalNote ? html` <span class="detail">${totalNote}</span>` : null}</span></dd></div>`)}</dl>`;
}
