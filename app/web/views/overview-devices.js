// The ledger of each device: what models, their KV caches and collections take of its memory.
import { StackedBar } from "../components/bar.js";
import { formatBytes, formatPercent } from "../lib/format.js";
import { html } from "../lib/html.js";

/** `devices`: of a sample. `live`: the numbers of the models by name, for the models on each device. */
export function Devices({ devices, models, live }) {
  if (!devices?.length) return null;
  return html`<div class="panels devices">${devices.map((device) => html`<${Device} key=${device.id} device=${device}
    models=${(models ?? []).filter((model) => model.device === device.id)} live=${live ?? {}} />`)}</div>`;
}

function Device({ device, models, live }) {
  const isVisible = device.limit_bytes !== null && device.limit_bytes !== undefined;
  return html`<section class="panel"><div class="card-head"><h2>${device.id === "cpu" ? "CPU" : device.id}</h2>
      <span class="detail">${device.name === device.id ? "" : device.name}</span></div>
    ${isVisible ? html`<${Ledger} device=${device} />` : html`<p class="muted">Only an operator sees the memory of models.</p>`}
    <p class="detail">${machine(device)}</p>
    ${models.length ? html`<p class="detail">${models.length} ${models.length === 1 ? "model" : "models"}${kvText(models, live)}</p>` : null}
  </section>`;
}

function Ledger({ device }) {
  const { limit_bytes: limit, reserved_bytes: reserved, kv_bytes: kv, collections_bytes: collections } = device;
  const parts = [
    { label: "Models", value: reserved - (kv ?? 0) - (collections ?? 0), series: 1 },
    { label: "KV caches", value: kv ?? 0, series: 2 },
    { label: "Collections", value: collections ?? 0, series: 3 },
    { label: "Free", value: Math.max(0, limit - reserved), series: "rest" },
  ];
  return html`<${StackedBar} label="Memory for models of ${device.id}" total=${Math.max(limit, reserved)} parts=${parts} format=${formatBytes} />
    <p class="detail">Models and collections may take ${formatBytes(limit)}; ${formatPercent(limit ? reserved / limit : 0)} is reserved.</p>`;
}

function machine({ total_bytes: total, free_bytes: free }) {
  return `Machine: ${formatBytes(free)} of ${formatBytes(total)} free.`;
}

function kvText(models, live) {
  const rows = models.map(({ name }) => live[name]).filter((each) => each?.kv_bytes);
  if (!rows.length) return "";
  const sum = (field) => rows.reduce((total, each) => total + (each[field] ?? 0), 0);
  return ` · KV caches: ${formatBytes(sum("kv_used_bytes"))} used, ${formatBytes(sum("kv_cached_bytes"))} cached of ${formatBytes(sum("kv_bytes"))}`;
}
