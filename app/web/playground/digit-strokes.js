// Examples to draw without a pointer: for each digit its strokes, in a square of 100 x 100.

/** Points on an ellipse, from one angle to another in degrees; 0 is right, 90 is down. */
function arc(centerX, centerY, radiusX, radiusY, from, to, steps = 16) {
  return Array.from({ length: steps + 1 }, (_, step) => {
    const angle = ((from + ((to - from) * step) / steps) * Math.PI) / 180;
    return { x: centerX + radiusX * Math.cos(angle), y: centerY + radiusY * Math.sin(angle) };
  });
}

const line = (...coordinates) =>
  Array.from({ length: coordinates.length / 2 }, (_, at) => ({ x: coordinates[2 * at], y: coordinates[2 * at + 1] }));

/** Strokes of the digits 0 to 9. */
export const DIGIT_STROKES = [
  [arc(50, 50, 26, 38, -90, 270, 32)],
  [line(38, 40, 54, 12, 54, 88)],
  [[...arc(48, 34, 22, 22, -170, 20), ...line(28, 88, 76, 88)]],
  [[...arc(46, 31, 22, 19, -160, 90), ...arc(46, 69, 24, 19, -90, 160)]],
  [line(56, 12, 26, 60, 78, 60), line(60, 38, 60, 88)],
  [line(70, 12, 34, 12, 32, 46), arc(46, 64, 24, 24, -130, 140)],
  [[...arc(62, 50, 32, 38, -100, -180), ...arc(50, 66, 20, 22, -180, 180, 32)]],
  [line(26, 14, 74, 14, 44, 88)],
  [line(68, 26, 56, 12, 40, 12, 32, 26, 40, 40, 62, 60, 68, 74, 58, 88, 42, 88, 34, 74, 44, 58, 62, 40, 68, 26)],
  [arc(48, 34, 20, 22, 0, 360, 32), line(68, 34, 66, 62, 54, 88)],
];
