// The charts of the last 15 minutes.
import { Chart } from "../components/chart.js";
import { formatBytes, formatCount, formatMs, formatNumber, formatRate } from "../lib/format.js";
import { html } from "../lib/html.js";

const MOST_MODELS = 5;

/** `history`: a History. `caller`: of the event `hello`; some columns are for operators only. */
export function Charts({ history, caller }) {
  const { t: times, server } = history;
  const common = { times, seconds: history.seconds };
  const of = (label, name) => ({ label, values: server[name] ?? [] });
  return html`<div class="panels charts">
    <${Chart} ...${common} title="Throughput" format=${formatRate} series=${[of("completed", "requests_per_s")]} />
    <${Chart} ...${common} title="Failures" format=${formatRate} empty="No request has failed in the last 15 minutes."
      series=${unlessZero([of("failed", "failed_per_s"), of("refused", "refused_per_s")])} />
    <${Chart} ...${common} title="Latency, mean by phase" format=${formatMs} stacked
      series=${[of("queue", "queue_ms"), of("compute", "compute_ms"), { label: "rest", values: rest(server) }]} />
    <${Chart} ...${common} title="Latency, percentiles" format=${formatMs} series=${[of("p50", "p50_ms"), of("p99", "p99_ms")]} />
    <${Chart} ...${common} title="Requests by model" format=${formatRate} series=${busiest(history)} />
    <${Chart} ...${common} title="Queued and in progress" format=${formatCount} series=${[of("in progress", "inflight"), of("queued", "queue")]} />
    ${caller.is_operator ? html`<${Chart} ...${common} title="Batch size, mean" format=${formatNumber} series=${[of("rows", "batch_rows")]} />` : null}
    <${Chart} ...${common} title="Tokens" format=${formatRate} empty="No text was generated in the last 15 minutes."
      series=${unlessZero([of("generated", "tokens_per_s"), of("prompts", "prompt_tokens_per_s")])} />
    <${Chart} ...${common} title="Memory of models" binary format=${formatBytes} series=${memory(history, caller)} />
    ${server.cpu_cores ? html`
      <${Chart} ...${common} title="CPU of the server" format=${formatCores} series=${ofProcesses(server, "cpu_cores")} />
      <${Chart} ...${common} title="Memory of the server" binary format=${formatBytes} series=${ofProcesses(server, "resident_bytes")} />` : null}
  </div>`;
}

/** What queue and compute leave of the latency: decoding, encoding and sending. */
function rest({ latency_ms: latency = [], queue_ms: queue = [], compute_ms: compute = [] }) {
  return latency.map((value, index) => (value === null ? null : Math.max(0, value - (queue[index] ?? 0) - (compute[index] ?? 0))));
}

/** The models with most requests in these minutes, in the order of their names so that colours stay. */
function busiest({ models }) {
  const sums = Object.entries(models).map(([name, columns]) => [name, columns.requests_per_s.reduce((sum, value) => sum + (value ?? 0), 0)]);
  const first = sums.sort((a, b) => b[1] - a[1]).slice(0, MOST_MODELS).map(([name]) => name).sort();
  return first.map((name) => ({ label: name, values: models[name].requests_per_s }));
}

function memory({ devices, server }, caller) {
  const ids = Object.keys(devices);
  if (!caller.is_operator || !ids.length) return [{ label: "models", values: server.memory_bytes ?? [] }];
  return ids.map((id) => ({ label: id, values: devices[id].reserved_bytes ?? [] }));
}

/** `cpu_cores` or `resident_bytes`: of the server, and of the processes of models if there were any. */
function ofProcesses(server, name) {
  const engines = server[`engine_${name}`] ?? [];
  const hasEngines = engines.some((value) => value !== null);
  return [{ label: "server", values: server[name] ?? [] }, ...(hasEngines ? [{ label: "processes of models", values: engines }] : [])];
}

function formatCores(value) {
  return `${formatNumber(value)} ${value === 1 ? "core" : "cores"}`;
}

/** Lines of zeros only say nothing: without values the chart says so in words. */
function unlessZero(series) {
  const isZero = !series.some(({ values }) => values.some((value) => value));
  return isZero ? series.map(({ label }) => ({ label, values: [] })) : series;
}
