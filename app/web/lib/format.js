// Numbers as text, always with their unit. A missing number is a dash.
export const NONE = "–";

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

/** Three significant digits below 1000, whole numbers with separators above. */
export function formatNumber(value) {
  if (isMissing(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-GB");
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  if (size >= 10) return value.toFixed(1);
  return size >= 0.01 || size === 0 ? value.toFixed(2) : value.toPrecision(2);
}

/** Large counts in a few characters: 12.3 k, 4.56 M. */
export function formatCount(value) {
  if (isMissing(value)) return NONE;
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= limit) return `${formatNumber(value / (unit === "k" ? 1e3 : limit))} ${unit}`;
  }
  return formatNumber(value);
}

export function formatRate(value, of = "") {
  return isMissing(value) ? NONE : `${formatCount(value)} ${of}/s`.replace("  ", " ");
}

export function formatBytes(bytes) {
  if (isMissing(bytes)) return NONE;
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(value)} B` : `${formatNumber(value)} ${SIZES[unit]}`;
}

export function formatPercent(share, digits = null) {
  if (isMissing(share)) return NONE;
  const percent = share * 100;
  return `${digits === null ? formatNumber(percent).replace(/\.0+$/, "") : percent.toFixed(digits)} %`;
}

/** A duration of any size: 85 µs, 0.85 ms, 12.4 ms, 1.20 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function formatDuration(seconds) {
  if (isMissing(seconds)) return NONE;
  if (seconds > 0 && seconds < 0.0000995) return `${formatNumber(seconds * 1e6)} µs`;
  if (seconds < 0.0995) return `${formatNumber(seconds * 1000)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const whole = Math.round(seconds);
  const first = units.findIndex(([, size]) => whole >= size);
  const [unit, size] = units[first];
  const [smallUnit, smallSize] = units[Math.min(first + 1, units.length - 1)];
  const small = Math.floor((whole % size) / smallSize);
  return `${Math.floor(whole / size)} ${unit}${small ? ` ${small} ${smallUnit}` : ""}`;
}

export function formatMs(milliseconds) {
  return isMissing(milliseconds) ? NONE : formatDuration(milliseconds / 1000);
}

/** Time of day in the zone of the reader, from seconds since 1970. */
export function formatTime(seconds) {
  return isMissing(seconds) ? NONE : new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

export function formatAgo(seconds) {
  return isMissing(seconds) ? NONE : seconds < 1 ? "now" : `${formatDuration(Math.round(seconds)).replace(/\.\d+ s$/, " s")} ago`;
}

/** Leave out zeros at the end of a fraction: "2.50 ms" is "2.5 ms". */
export function withoutZeros(text) {
  return text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
}
