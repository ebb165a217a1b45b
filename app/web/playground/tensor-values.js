// Tensors as the form keeps them: `{dtype, shape, data}` with flat data.

const INTEGER = /^u?int/;

/** Whether the form can make values of a dtype; of others (sequences, maps) it takes JSON. */
export const isPlain = (dtype) => /^(bool|string|float\d+|bfloat16|u?int\d+)$/.test(dtype);

/** Return a shape without free dimensions: each of them is 1; no shape is one value. */
export const closedShape = (shape) => (shape ?? [1]).map((length) => (length < 0 ? 1 : length));

/** Return the number of values of a shape. */
export const countOf = (shape) => shape.reduce((product, length) => product * length, 1);

/** Return the shape in a text as `1, 64`. Throws an Error that says what is wrong. */
export function readShape(text) {
  const parts = text.split(/[\s,x×]+/).filter(Boolean);
  if (!parts.every((part) => /^\d+$/.test(part))) throw new Error("shape: expected numbers with commas");
  return parts.map(Number);
}

/** Return flat data of a JSON value with its shape. Throws an Error for rows of several lengths. */
export function flatten(value) {
  if (!Array.isArray(value)) return { shape: [], data: [value] };
  const parts = value.map(flatten);
  const inner = parts[0]?.shape ?? [];
  if (parts.some((part) => part.shape.join() !== inner.join())) throw new Error("values: expected rows of one length");
  return { shape: [value.length, ...inner], data: parts.flatMap((part) => part.data) };
}

/** Return flat data nested as its shape says. */
export function nest(data, shape) {
  if (shape.length === 0) return data[0];
  if (shape.length === 1) return data;
  const size = countOf(shape.slice(1));
  return Array.from({ length: shape[0] }, (_, at) => nest(data.slice(at * size, (at + 1) * size), shape.slice(1)));
}

/** Return the shape for a number of values: the wanted one if it fits, else the last free dimension takes them. */
export function fitShape(count, wanted, declared) {
  if (countOf(wanted) === count) return wanted;
  const shape = closedShape(declared);
  const free = (declared ?? []).lastIndexOf(-1);
  if (free < 0 || count === 0 || count % countOf(shape) !== 0) {
    throw new Error(`values: expected ${countOf(wanted)} for the shape [${wanted.join(", ")}], got ${count}`);
  }
  shape[free] = count / countOf(shape);
  return shape;
}

/** Fillings by name: each returns the value at a place, of `count` values. */
export const FILLINGS = {
  zeros: () => 0,
  ones: () => 1,
  ramp: (at, count) => (count > 1 ? at / (count - 1) : 0),
  random: () => Math.random(),
};

/** Return `count` values of a filling, as the dtype holds them: integers from 0 to 9, booleans from 0.5. */
export function fill(name, count, dtype) {
  const value = FILLINGS[name];
  return Array.from({ length: count }, (_, at) => {
    const number = value(at, count);
    if (dtype === "string") return number === 0 ? "" : `text ${at + 1}`;
    if (dtype === "bool") return number >= 0.5;
    if (INTEGER.test(dtype)) return name === "random" || name === "ramp" ? Math.floor(number * 9.999) : number;
    return Number(number.toFixed(6));
  });
}

/** Return data of any numbers as a dtype of a model holds it: whole for integers, true or false for bool. */
export function convert(data, dtype) {
  if (dtype === "bool") return data.map(Boolean);
  if (dtype === "string") return data.map(String);
  if (INTEGER.test(dtype)) return data.map((value) => (typeof value === "bigint" ? plain(value) : Math.round(Number(value))));
  return data.map(Number);
}

/** JSON has no NaN: the server takes numbers only. A 64-bit integer stays exact. */
const plain = (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value);
