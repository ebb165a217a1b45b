// Arithmetic on embeddings.

/** Return the cosine of two vectors of one length; 0 if one of them is zero. */
export function cosine(a, b) {
  let dot = 0;
  let squareA = 0;
  let squareB = 0;
  for (let at = 0; at < a.length; at += 1) {
    dot += a[at] * b[at];
    squareA += a[at] * a[at];
    squareB += b[at] * b[at];
  }
  const product = Math.sqrt(squareA * squareB);
  return product === 0 ? 0 : dot / product;
}

/** Return the cosines of all pairs, as rows. */
export const cosines = (vectors) => vectors.map((a) => vectors.map((b) => cosine(a, b)));

/** Return vectors of one length for sparse ones, `{indices, values}` each: of the dimensions that one of them has. */
export function denseVectors(sparse) {
  const columns = new Map();
  for (const { indices } of sparse) for (const index of indices) if (!columns.has(index)) columns.set(index, columns.size);
  return sparse.map(({ indices, values }) => {
    const row = new Float64Array(columns.size);
    indices.forEach((index, at) => { row[columns.get(index)] = values[at]; });
    return row;
  });
}

/** Return the largest difference of the numbers of two nested arrays of one shape. */
export function largestDifference(a, b) {
  if (!Array.isArray(a) && !ArrayBuffer.isView(a)) return Math.abs(Number(a) - Number(b));
  let largest = a.length === b.length ? 0 : Infinity;
  for (let at = 0; at < Math.min(a.length, b.length); at += 1) largest = Math.max(largest, largestDifference(a[at], b[at]));
  return largest;
}
