// Pictures as tensors: read, scaled to the shape of an input, and split into its channels.

/** Ranges of the values: name -> function of a value from 0 to 1 and its channel. */
export const RANGES = {
  "0 to 1": (value) => value,
  "0 to 255": (value) => Math.round(value * 255),
  "-1 to 1": (value) => value * 2 - 1,
  "0 to 16": (value) => Math.round(value * 16),
  ImageNet: (value, channel) => (value - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

/**
 * Return `{width, height, channels, isLast}` of an input that takes a picture, or null for other shapes.
 *
 * Known are [N, C, H, W], [N, H, W, C], [N, H, W] and [N, side * side], with 1, 3 or 4 channels.
 */
export function pictureLayout(shape) {
  const sizes = shape.map((length) => (length < 0 ? 224 : length));
  const isChannels = (length) => [1, 3, 4].includes(length);
  if (shape.length === 4 && isChannels(shape[1])) return { channels: shape[1], height: sizes[2], width: sizes[3], isLast: false };
  if (shape.length === 4 && isChannels(shape[3])) return { channels: shape[3], height: sizes[1], width: sizes[2], isLast: true };
  if (shape.length === 3) return { channels: 1, height: sizes[1], width: sizes[2], isLast: false };
  const side = Math.sqrt(shape[1] ?? 0);
  return shape.length === 2 && side >= 4 && Number.isInteger(side) ? { channels: 1, height: side, width: side, isLast: false } : null;
}

/** Return the flat values of a picture file in a layout, and the shape with a first dimension of 1. */
export async function readPicture(file, shape, range) {
  const layout = pictureLayout(shape);
  if (layout === null) throw new Error(`file: expected an input of a picture's shape, got [${shape.join(", ")}]; upload .npy or .json`);
  const { width, height, channels, isLast } = layout;
  const bitmap = await createImageBitmap(file, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const pixels = context.getImageData(0, 0, width, height).data;
  const scale = RANGES[range];
  const at = (pixel, channel) => {
    const [red, green, blue, alpha] = pixels.subarray(pixel * 4, pixel * 4 + 4);
    // Grey as the eye sees it (ITU-R BT.601).
    const value = channels === 1 ? 0.299 * red + 0.587 * green + 0.114 * blue : [red, green, blue, alpha][channel];
    return Number(scale(value / 255, channel).toFixed(5));
  };
  const count = width * height;
  const data = Array.from({ length: count * channels }, (_, index) =>
    isLast ? at(Math.floor(index / channels), index % channels) : at(index % count, Math.floor(index / count)));
  const sizes = { 2: [count], 3: [height, width], 4: isLast ? [height, width, channels] : [channels, height, width] };
  return { shape: [1, ...sizes[shape.length]], data };
}
