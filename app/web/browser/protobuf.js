// The wire format of protocol buffers, as far as an ONNX file needs it.

const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** Wire types: a varint, a length with bytes; the fixed ones are only skipped. */
const VARINT = 0;
const FIXED_64 = 1;
const BYTES = 2;
const FIXED_32 = 5;

/**
 * Return the fields of a message in order: `{number, type, value, raw}`. `value` is a BigInt for a varint and a
 * Uint8Array (a view) for bytes; `raw` is the field as it is in the message, key included. Throws for a damaged message.
 */
export function readFields(message) {
  const fields = [];
  let at = 0;
  while (at < message.length) {
    const start = at;
    let key;
    [key, at] = readVarint(message, at);
    const type = Number(key & 7n);
    const field = { number: Number(key >> 3n), type, value: null, raw: null };
    if (type === VARINT) {
      [field.value, at] = readVarint(message, at);
    } else if (type === BYTES) {
      let length;
      [length, at] = readVarint(message, at);
      field.value = message.subarray(at, at + Number(length));
      at += Number(length);
    } else if (type === FIXED_64 || type === FIXED_32) {
      at += type === FIXED_64 ? 8 : 4;
    } else {
      throw new Error(`the file is not a protocol buffer: wire type ${type}`);
    }
    if (at > message.length) throw new Error("the file is not a protocol buffer: a field ends after the message");
    field.raw = message.subarray(start, at);
    fields.push(field);
  }
  return fields;
}

/** Return the text of a bytes field. */
export const textOf = (field) => decoder.decode(field.value);

/** Return the integers of a repeated field: one of each varint, or all of a packed one. */
export function integersOf(field) {
  if (field.type === VARINT) return [BigInt.asIntN(64, field.value)];
  const values = [];
  let at = 0;
  while (at < field.value.length) {
    let value;
    [value, at] = readVarint(field.value, at);
    values.push(BigInt.asIntN(64, value));
  }
  return values;
}

/** Return a field that holds bytes, text or another message. */
export function bytesField(number, value) {
  const bytes = typeof value === "string" ? encoder.encode(value) : value;
  return concatenate([writeVarint((number << 3) | BYTES), writeVarint(bytes.length), bytes]);
}

/** Return a field that holds an integer >= 0. */
export const integerField = (number, value) => concatenate([writeVarint((number << 3) | VARINT), writeVarint(value)]);

/** Return one array with the bytes of all. */
export function concatenate(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function readVarint(bytes, start) {
  let value = 0n;
  let shift = 0n;
  for (let at = start; at < bytes.length && shift < 70n; at += 1, shift += 7n) {
    value |= BigInt(bytes[at] & 127) << shift;
    if (bytes[at] < 128) return [value, at + 1];
  }
  throw new Error("the file is not a protocol buffer: a number does not end");
}

function writeVarint(number) {
  const bytes = [];
  let rest = number;
  while (rest > 127) {
    bytes.push((rest % 128) | 128);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
  return Uint8Array.from(bytes);
}
