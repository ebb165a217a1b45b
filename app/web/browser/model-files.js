// The files of a model, from the server that serves it.
import { getJson, modelPath, open } from "../lib/api.js";
import { withKey } from "../lib/key.js";

/** Weights beside a graph: ONNX files above 2 GB, and others whose exporter wished it. */
const EXTERNAL_DATA = /[._](data|bin|weights)$/;

/** Return `[{path, bytes}]` of the active version. Raises ApiError: 403 unless the model may be downloaded. */
export const listFiles = (name) => getJson(modelPath(name, "/files")).then((list) => list.files);

/** Return `{graph, external}` among the files: the ONNX file to run, and those with its weights. `name`: in the graph. */
export function graphOf(files) {
  const graphs = files.filter((file) => file.path.endsWith(".onnx"));
  const named = (path) => graphs.find((file) => file.path === path);
  const graph = named("model.onnx") ?? named("onnx/model.onnx") ?? graphs[0];
  if (graph === undefined) throw new Error("files: expected an ONNX file, got none");
  const folder = graph.path.slice(0, graph.path.lastIndexOf("/") + 1);
  const beside = files.filter((file) => file.path.startsWith(folder) && EXTERNAL_DATA.test(file.path));
  return { graph, external: beside.map((file) => ({ ...file, name: file.path.slice(folder.length) })) };
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
