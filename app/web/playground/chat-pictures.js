// The pictures of a chat: chosen ones within the bounds of a model, and their files as text.
import { useRef, useState } from "../lib/html.js";
import { KINDS } from "./image-files.js";

/** Of a scaled JPEG. */
const QUALITY = 0.92;

/** Return `visionOf(model)`: its bounds of pictures, null if it reads none. `own`: the model `name`, `models`: the list. */
export function visionsOf(name, own, models) {
  const listed = (model) => models.find((each) => each.name === model)?.vision;
  return (model) => (model === name ? own.vision : listed(model)) ?? null;
}

/** Return the bounds `{max_images, max_image_pixels}` that all seeing models have; null if the first sees none. */
export function boundsOf([first, ...others]) {
  if (first === null) return null;
  const least = (bound) => Math.min(...[first, ...others].filter(Boolean).map((vision) => vision[bound]));
  return { max_images: least("max_images"), max_image_pixels: least("max_image_pixels") };
}

/** Return the largest size of at most `most` pixels with the shape of a picture, and never more than its own size. */
export function sizeWithin(width, height, most) {
  const scale = Math.min(1, Math.sqrt(most / (width * height)));
  if (scale === 1) return { width, height };
  const scaled = (side) => Math.max(1, Math.floor(side * scale));
  return { width: Math.min(scaled(width), Math.floor(most / scaled(height)) || 1), height: Math.min(scaled(height), most) };
}

/** Return a name that is not taken: "image.png" becomes "image-2.png". Code reads the pictures by their names. */
export function freeName(name, taken) {
  const [, stem, ending] = name.match(/^(.*?)(\.[^.]*)?$/s);
  for (let number = 1; ; number += 1) {
    const each = number === 1 ? name : `${stem}-${number}${ending ?? ""}`;
    if (!taken.includes(each)) return each;
  }
}

/**
 * Return a file as the picture `{name, url, width, height, whole}`. `url`: its file in base64.
 *
 * A picture above `most` pixels is scaled down; `whole` is then its size before, else null.
 */
export async function readPicture(file, most) {
  const bitmap = await createImageBitmap(file);
  const whole = { width: bitmap.width, height: bitmap.height };
  const size = sizeWithin(whole.width, whole.height, most);
  if (size.width === whole.width && size.height === whole.height) {
    bitmap.close();
    return { name: file.name, url: await dataUrl(file), ...size, whole: null };
  }
  const canvas = new OffscreenCanvas(size.width, size.height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, size.width, size.height);
  bitmap.close();
  // Other types have sharp edges or transparent parts.
  const [type, ending] = file.type === "image/jpeg" ? ["image/jpeg", "jpg"] : ["image/png", "png"];
  const name = `${file.name.replace(/\.[^.]*$/, "")}-${size.width}x${size.height}.${ending}`;
  return { name, url: await dataUrl(await canvas.convertToBlob({ type, quality: QUALITY })), ...size, whole };
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/**
 * Return the pictures of the next message: `{pictures, notes, isReading, add, remove, clear}`.
 *
 * `bounds`: of boundsOf. `sent`: pictures that the next request has already. `shown`: all of the conversation.
 * `notes`: texts about pictures that were left out.
 */
export function useChosenPictures(bounds, sent, shown) {
  const [pictures, setPictures] = useState([]);
  const [notes, setNotes] = useState([]);
  const [reading, setReading] = useState(0);
  const latest = useRef(pictures);
  const change = (next) => { latest.current = next; setPictures(next); };
  const add = async (files, others = []) => {
    const left = others.map(({ name }) => `${name} is left out: expected ${KINDS}.`);
    const leaveOut = (file) => left.push(`${file.name} is left out: a conversation has at most ${counted(bounds.max_images)}.`);
    const room = () => bounds.max_images - sent - latest.current.length;
    const first = files.slice(0, Math.max(0, room()));
    setReading((count) => count + 1);
    const read = await Promise.all(first.map((file) => readPicture(file, bounds.max_image_pixels).catch(() => null)));
    setReading((count) => count - 1);
    read.forEach((picture, at) => {
      if (picture === null) left.push(`${first[at].name} is left out: the browser cannot read it.`);
      else if (room() <= 0) leaveOut(first[at]);
      else change([...latest.current, named(picture, [...shown, ...latest.current])]);
    });
    files.slice(first.length).forEach(leaveOut);
    setNotes(left);
  };
  const remove = (picture) => { setNotes([]); change(latest.current.filter((each) => each !== picture)); };
  const clear = () => { setNotes([]); change([]); };
  return { pictures, notes, isReading: reading > 0, add, remove, clear };
}

/** Two files may have one name, as pasted ones do. */
function named(picture, others) {
  const taken = others.filter(({ url }) => url !== picture.url).map(({ name }) => name);
  return { ...picture, name: freeName(picture.name, taken) };
}

/** Return a number of pictures in words. */
export const counted = (number) => `${number} picture${number === 1 ? "" : "s"}`;
