// Numbers of models as text.

/** A share from 0 to 1 as a percentage: 99.7 %, 3.2 %, 0.04 %, < 0.01 %. */
export function percent(share) {
  const value = 100 * share;
  if (value >= 99.95) return "100 %";
  if (value >= 1) return `${value.toFixed(1)} %`;
  if (value >= 0.01) return `${value.toFixed(2)} %`;
  return value === 0 ? "0 %" : "< 0.01 %";
}

/** A value of a tensor in few characters: integers whole, other numbers with five significant digits. */
export function short(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}
