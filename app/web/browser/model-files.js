// The files of a model, from the server that serves it.
import { getJson, modelPath, open } from "../lib/api.js";
import { withKey } from "../lib/key.js";

/** Weights beside a graph: ONNX files above 2 GB, and others whose exporter wished it. */
const EXTERNAL_DATA = /[._](data|bin|weights)$/;

/** Return `[{path, bytes}]` of the active version. Raises ApiError: 403 unless the model may be downloaded. */
export const listFiles = (name) => getJson(modelPath(name, "/files")).then((list) => list.files);

/** Return `{graph, external}` among the files: the ONNX file to run, and the files with its weights. */
export function graphOf(files) {
  const graphs = files.filter((file) => file.path.endsWith(".onnx"));
  const graph = graphs.find((file) => file.path === "model.onnx") ?? graphs[0];
  if (graph === undefined) throw new Error("files: expected an ONNX file, got none");
  return { graph, external: files.filter((file) => EXTERNAL_DATA.test(file.path)) };
}

/**
 * Return the bytes of a file. `onBytes(count)` is called for each part.
 *
 * The browser keeps the file and asks by its ETag whether it is still the same.
 */
export async function fetchFile(name, file, onBytes = () => {}) {
  const path = modelPath(name, `/files/${file.path.split("/").map(encodeURIComponent).join("/")}`);
  const response = await fetch(path, { headers: withKey(), cache: "no-cache", credentials: "omit" });
  // The usual call reports the error in the words of the server.
  if (!response.ok) await open("GET", path);
  const bytes = new Uint8Array(file.bytes);
  let at = 0;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (at + value.length > bytes.length) throw changed(file);
    bytes.set(value, at);
    at += value.length;
    onBytes(value.length);
  }
  if (at !== bytes.length) throw changed(file);
  return bytes;
}

/** Return the object in a JSON file, or null if the model has no such file. */
export async function fetchJson(name, files, path) {
  const file = files.find((each) => each.path === path);
  return file ? JSON.parse(new TextDecoder().decode(await fetchFile(name, file))) : null;
}

const changed = (file) => new Error(`${file.path}: expected ${file.bytes} bytes, got another number; load the model again`);
