// Arrays in the format of numpy's .npy files.

const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59]; // \x93NUMPY
const HEADER_FIELD = /'descr':\s*'([<>|=])([bfiu])(\d+)'/;

/** Readers of one element: kind and bytes of numpy -> name of the dtype, and the method of DataView. */
const KINDS = {
  b1: ["bool", "getUint8"],
  i1: ["int8", "getInt8"],
  i2: ["int16", "getInt16"],
  i4: ["int32", "getInt32"],
  i8: ["int64", "getBigInt64"],
  u1: ["uint8", "getUint8"],
  u2: ["uint16", "getUint16"],
  u4: ["uint32", "getUint32"],
  u8: ["uint64", "getBigUint64"],
  f2: ["float16", "getUint16"],
  f4: ["float32", "getFloat32"],
  f8: ["float64", "getFloat64"],
};

/**
 * Read the bytes of a .npy file of version 1 to 3.
 *
 * Returns `{dtype, shape, data}` with the values in C order: numbers, BigInt for 64-bit integers, booleans for bool.
 * Throws an Error that says what the file has instead.
 */
export function readNpy(bytes) {
  if (!MAGIC.every((value, at) => bytes[at] === value)) throw new Error("file: expected a .npy file of numpy");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const isFirstVersion = bytes[6] === 1;
  const headerAt = isFirstVersion ? 10 : 12;
  const start = headerAt + (isFirstVersion ? view.getUint16(8, true) : view.getUint32(8, true));
  const header = new TextDecoder().decode(bytes.subarray(headerAt, start));
  const [, order, kind, size] = HEADER_FIELD.exec(header) ?? [];
  const [dtype, method] = KINDS[kind + size] ?? [];
  if (dtype === undefined) {
    const got = /'descr':\s*(.+?),\s*'fortran/.exec(header)?.[1] ?? "no descr";
    throw new Error(`file: expected an array of numbers or booleans, got ${got}; save it with another dtype`);
  }
  const shape = [...(/'shape':\s*\(([^)]*)\)/.exec(header)?.[1] ?? "").matchAll(/\d+/g)].map(Number);
  const count = shape.reduce((product, length) => product * length, 1);
  if (start + count * Number(size) > bytes.length) {
    throw new Error(`file: expected ${count} values of ${dtype}, got ${bytes.length - start} bytes; the file is cut`);
  }
  const isLittle = order !== ">";
  const data = Array.from({ length: count }, (_, at) => view[method](start + at * Number(size), isLittle));
  const values = dtype === "float16" ? data.map(halfToNumber) : dtype === "bool" ? data.map(Boolean) : data;
  const isFortran = /'fortran_order':\s*True/.test(header);
  return { dtype, shape, data: isFortran ? inRowOrder(values, shape) : values };
}

/** Return the number of a float16 in 16 bits. */
export function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

/** Return the values of an array in column order (Fortran's) in row order. */
function inRowOrder(values, shape) {
  const strides = shape.map((_, axis) => shape.slice(0, axis).reduce((product, length) => product * length, 1));
  const index = shape.map(() => 0);
  return values.map(() => {
    const value = values[index.reduce((sum, at, axis) => sum + at * strides[axis], 0)];
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      index[axis] += 1;
      if (index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
    return value;
  });
}
