// onnxruntime-web: loaded from this server when it has the files, which are optional.

const ADDRESS = new URL("../runtime/ort.wasm.min.mjs", import.meta.url).href;
/** More threads gain little for the models that fit into a page. */
const MAX_THREADS = 4;

let loading = null;

/** The runtime is not among the files of this server. */
export class RuntimeMissing extends Error {}

/** Return `{ort, threads}`. Threads need shared memory, which a page has only when it is isolated from other origins. */
export function loadRuntime() {
  loading ??= importRuntime();
  loading.catch(() => { loading = null; });
  return loading;
}

async function importRuntime() {
  let ort;
  try {
    ort = await import(ADDRESS);
  } catch (error) {
    throw new RuntimeMissing(error.message);
  }
  const threads = globalThis.crossOriginIsolated ? Math.min(MAX_THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  return { ort, threads };
}
