// A model that runs in the page: its graph in a session of onnxruntime-web.
import { withoutMaps } from "./graph.js";
import { fetchFile, fetchJson, graphOf, listFiles } from "./model-files.js";
import { loadRuntime } from "./runtime.js";
import { TextEncoder } from "./text-encoder.js";

/** Typed arrays by dtype; other dtypes are not run in the page. */
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array,
};
const LONG = new Set(["int64", "uint64"]);

export class BrowserModel {
  /** `maps`: outputs of the model that the session returns as tensors, as graph.js describes them. */
  constructor(ort, session, maps, threads) {
    this.ort = ort;
    this.session = session;
    this.maps = maps;
    this.threads = threads;
  }

  /** Run `{name: {dtype, shape, data}}` with flat data; returns outputs of the same form. Maps are lists of objects. */
  async run(inputs) {
    const feeds = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, this.tensorOf(name, input)]));
    const results = await this.session.run(feeds);
    const replaced = Object.values(this.maps).map((map) => map.tensor);
    const outputs = {};
    for (const [name, { type, dims, data }] of Object.entries(results)) {
      if (!replaced.includes(name)) outputs[name] = { dtype: type, shape: [...dims], data };
    }
    for (const [name, { tensor, labels }] of Object.entries(this.maps)) outputs[name] = mapsOf(results[tensor], labels);
    return outputs;
  }

  tensorOf(name, { dtype, shape, data }) {
    const Values = ARRAYS[dtype];
    if (Values === undefined) throw new Error(`${name}: expected numbers or booleans, got ${dtype}; try it on the server`);
    const values = data instanceof Values ? data : Values.from(data, LONG.has(dtype) ? (value) => BigInt(value) : Number);
    return new this.ort.Tensor(dtype, values, shape);
  }

  release() {
    return this.session.release();
  }
}

/**
 * Load a model of the server into the page: `{model, encoder, bytes, loadMs}`, the encoder null without texts.
 *
 * `description`: as GET /models/{name} has it. `onProgress(received, total)`: bytes of the graph. Raises RuntimeMissing,
 * ApiError, and Error for a graph that cannot run here.
 */
export async function openModel(description, onProgress) {
  const startMs = performance.now();
  const files = await listFiles(description.name);
  const { graph, external } = graphOf(files);
  const total = [graph, ...external].reduce((sum, file) => sum + file.bytes, 0);
  let received = 0;
  const count = (bytes) => { received += bytes; onProgress(received, total); };
  onProgress(0, total);
  const [{ ort, threads }, ...parts] = await Promise.all([
    loadRuntime(),
    ...[graph, ...external].map((file) => fetchFile(description.name, file, count)),
  ]);
  const { graph: runnable, maps } = withoutMaps(parts[0]);
  const externalData = external.map((file, at) => ({ path: file.name, data: parts[at + 1] }));
  const session = await ort.InferenceSession.create(runnable, { externalData });
  const model = new BrowserModel(ort, session, maps, threads);
  const encoder = description.task === "embed" ? await encoderOf(model, description, files) : null;
  return { model, encoder, bytes: total, loadMs: performance.now() - startMs };
}

async function encoderOf(model, description, files) {
  const [tokenizer, pooling, modules] = await Promise.all(
    ["tokenizer.json", "1_Pooling/config.json", "modules.json"].map((path) => fetchJson(description.name, files, path)),
  );
  const maxTokens = description.version_details[description.active_version].max_tokens;
  return new TextEncoder(model, description.inputs, { tokenizer, pooling, modules }, maxTokens);
}

/** Return the output of a classifier as the server writes it: an object of shares for each row. */
function mapsOf({ dims, data }, labels) {
  const [rows, columns] = dims;
  return {
    dtype: "sequence(map)",
    shape: [rows],
    data: Array.from({ length: rows }, (_, row) =>
      Object.fromEntries(labels.map((label, at) => [label, data[row * columns + at]]))),
  };
}
