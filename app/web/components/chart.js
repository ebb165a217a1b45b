// A chart over time by uPlot. It is made once; new values are drawn into it.
import uPlot from "../vendor/uplot.js";
import { NONE, formatTime, withoutZeros } from "../lib/format.js";
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { colour, onTheme } from "../lib/theme.js";

const HEIGHT = 150;
const AXIS_FONT = "11px system-ui, sans-serif";
/** Dashes tell lines apart without colour. */
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4], [12, 4]];
const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** Steps of the axis of time in seconds: its labels are minutes. */
const TIME_STEPS = [60, 120, 300, 600, 1800, 3600];
const MIN_SPAN_S = 120;
const SYNC = "overview";

/**
 * `times`: Unix seconds. `series`: [{label, values}] as long as `times`. `format`: of a value. `stacked`: values add up.
 * `seconds`: width of the axis of time. `binary`: values are bytes, so that the axis has steps of powers of two. `empty`: text where no series has a value.
 */
export function Chart({ title, times, series, format, seconds, stacked = false, binary = false, empty = "No values in the last 15 minutes." }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(null);
  const [hovered, setHovered] = useState(null);
  const id = useId();
  const isEmpty = !series.some(({ values }) => values.some((value) => value !== null && value !== undefined));
  latest.current = { times, series, format, seconds, stacked, binary };
  const shape = series.map(({ label }) => label).join("\n");

  useEffect(() => {
    // The observer may still call between the drawing without a plot and the end of this effect.
    const element = place.current;
    if (element === null) return undefined;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(latest, element, setHovered), data(latest.current), element);
    };
    make();
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resize.observe(element);
    const endTheme = onTheme(make);
    return () => { endTheme(); resize.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape, isEmpty]);

  // After each drawing of the component: a hidden page is not drawn.
  useEffect(() => { if (plot.current && !document.hidden) plot.current.setData(data(latest.current)); });

  const at = hovered !== null && hovered < times.length ? hovered : times.length - 1;
  const value = ({ values }) => (values[at] === null || values[at] === undefined ? NONE : format(values[at]));
  return html`<figure class="panel chart" aria-labelledby=${id}>
    <div class="chart-head"><h2 id=${id}>${title}</h2>
      <span class="detail">${!isEmpty && hovered !== null ? formatTime(times[at]) : ""}</span></div>
    <ul class="legend">${series.map((each, index) => html`<li key=${each.label}>
      <${Line} index=${index} stacked=${stacked} /><span class="legend-label">${each.label}</span>
      <span class="legend-value">${value(each)}</span></li>`)}</ul>
    ${isEmpty ? html`<p class="chart-empty">${empty}</p>`
      : html`<div class="chart-place" ref=${place} role="img" aria-label="${title}: ${series.map((each) => `${each.label} ${value(each)}`).join(", ")}"></div>`}
  </figure>`;
}

function Line({ index, stacked }) {
  const stroke = `var(--series-${(index % 6) + 1})`;
  return html`<svg class="line" viewBox="0 0 22 10" width="22" height="10" aria-hidden="true">
    ${stacked ? html`<rect width="22" height="10" rx="2" fill=${stroke} />`
      : html`<path d="M0 5H22" stroke=${stroke} stroke-width="2.5" stroke-dasharray=${DASHES[index % DASHES.length].join(" ")} />`}</svg>`;
}

/** Values as uPlot takes them. Of a stack the upper edges, last series lowest on the list of layers. */
function data({ times, series, stacked }) {
  const columns = series.map(({ values }) => values);
  if (!stacked) return [times, ...columns];
  let below = null;
  const edges = columns.map((column) => {
    const base = below;
    below = column.map((value, index) => (value === null && (base === null || base[index] === null) ? null
      : (value ?? 0) + (base?.[index] ?? 0)));
    return below;
  });
  return [times, ...edges];
}

function options(latest, place, setHovered) {
  const { series, stacked, binary } = latest.current;
  const grid = { stroke: colour("line"), width: 1 };
  const ticks = { stroke: colour("line"), width: 1, size: 4 };
  const axis = { stroke: colour("muted"), font: AXIS_FONT, grid, ticks };
  return {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    cursor: { drag: { setScale: false, x: false, y: false }, sync: { key: SYNC, setSeries: false }, points: { show: !stacked, size: 6 }, y: false },
    scales: {
      x: { time: true, range: () => span(latest.current) },
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      { ...axis, size: 26, gap: 3, space: 56, incrs: TIME_STEPS, values: (_, splits) => splits.map(clock) },
      { ...axis, size: (_, values) => Math.max(30, ...(values ?? []).map((text) => 12 + text.length * 6)), gap: 4, space: 28, ...(binary ? { incrs: BINARY_STEPS } : {}),
        values: (_, splits) => splits.map((split) => (split === null ? "" : withoutZeros(latest.current.format(split)))) },
    ],
    series: [{}, ...series.map((each, index) => ({
      label: each.label,
      stroke: colour(`series-${(index % 6) + 1}`),
      width: stacked ? 1 : 1.75,
      dash: stacked ? undefined : DASHES[index % DASHES.length],
      fill: stacked && index === 0 ? soft(index) : undefined,
      points: { show: false },
      spanGaps: false,
    }))],
    bands: stacked ? series.slice(1).map((_, index) => ({ series: [index + 2, index + 1], fill: soft(index + 1) })) : [],
    hooks: { setCursor: [(self) => setHovered(self.cursor.left >= 0 ? self.cursor.idx ?? null : null)] },
  };
}

/** Bounds of the axis of time: all values, at least the last minutes of a new server. */
function span({ times, seconds }) {
  const end = times.at(-1) ?? Date.now() / 1000;
  return [Math.max(end - seconds, Math.min(times[0] ?? end, end - MIN_SPAN_S)), end];
}

const soft = (index) => `${colour(`series-${(index % 6) + 1}`)}55`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
