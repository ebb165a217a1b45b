// From strokes to the 8 x 8 grey values of the digits that the model was trained on.

/** Cells on a side, and the largest grey value: a cell counts the 4 x 4 points of ink below it. */
export const SIDE = 8;
export const MAX_GREY = 16;
const POINTS = 4;
const GRID = SIDE * POINTS;

/** Radius of the pen, and the free points left and right, in points of the grid of 32 x 32. */
const PEN = 3;
const MARGIN = 4;

/**
 * Return the 64 grey values (0 to 16, by rows) of strokes: lists of points `{x, y}` in any unit.
 *
 * The drawing is scaled to the height of the image and centred, as the training images are. No strokes give zeros.
 */
export function rasterise(strokes) {
  const greys = new Array(SIDE * SIDE).fill(0);
  const segments = segmentsOf(fit(strokes));
  if (segments.length === 0) return greys;
  for (let row = 0; row < GRID; row += 1) {
    for (let column = 0; column < GRID; column += 1) {
      if (!segments.some((segment) => distance(segment, column + 0.5, row + 0.5) <= PEN)) continue;
      greys[Math.floor(row / POINTS) * SIDE + Math.floor(column / POINTS)] += 1;
    }
  }
  return greys;
}

/** Move and scale strokes into the grid, with room for the pen. */
function fit(strokes) {
  const points = strokes.flat();
  if (points.length === 0) return [];
  const [left, right] = extent(points.map((point) => point.x));
  const [top, bottom] = extent(points.map((point) => point.y));
  const height = GRID - 2 * PEN;
  const width = GRID - 2 * (MARGIN + PEN);
  // A dot has no size; it stays a dot.
  const scale = Math.min(height / (bottom - top || 1), width / (right - left || 1));
  const shrink = bottom === top && right === left ? 0 : scale;
  const move = (value, low, high) => GRID / 2 + (value - (low + high) / 2) * shrink;
  return strokes.map((stroke) =>
    stroke.map(({ x, y }) => ({ x: move(x, left, right), y: move(y, top, bottom) })),
  );
}

function extent(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

/** Return `[from, to]` of all lines of the strokes; a stroke of one point is a line without length. */
function segmentsOf(strokes) {
  return strokes.flatMap((stroke) =>
    stroke.length === 1 ? [[stroke[0], stroke[0]]] : stroke.slice(1).map((point, at) => [stroke[at], point]),
  );
}

function distance([from, to], x, y) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const squared = dx * dx + dy * dy;
  const along = squared === 0 ? 0 : Math.max(0, Math.min(1, ((x - from.x) * dx + (y - from.y) * dy) / squared));
  return Math.hypot(x - from.x - along * dx, y - from.y - along * dy);
}
