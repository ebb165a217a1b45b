// The collections of the server, read again every few seconds while a view shows them: rows and indexes change by themselves.
import { getJson } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { onKey } from "./key.js";
import { useObservable } from "./observable.js";
import { sample } from "./server.js";

const INTERVAL_MS = 3_000;

/** Path of a route of a collection. */
export function collectionPath(name, rest = "") {
  return `v1/collections/${encodeURIComponent(name)}${rest}`;
}

/** Path of a record of a collection. */
export function recordPath(name, id) {
  return collectionPath(name, `/records/${id.split("/").map(encodeURIComponent).join("/")}`);
}

/** Return {value, error, refresh} of GET `path`. `value`: the last answer, or null before the first one. */
function useLive(path) {
  const [state, setState] = useState({ value: null, error: null });
  const refresh = useRef(() => {});
  useEffect(() => {
    let control = new AbortController();
    const read = async () => {
      control.abort();
      const current = (control = new AbortController());
      try {
        const value = await getJson(path, { signal: current.signal });
        setState({ value, error: null });
      } catch (error) {
        if (!current.signal.aborted) setState(({ value }) => ({ value: error.status === 404 ? null : value, error }));
      }
    };
    refresh.current = read;
    const timer = setInterval(() => { if (!document.hidden) read(); }, INTERVAL_MS);
    const end = onKey(() => { setState({ value: null, error: null }); read(); });
    read();
    return () => { clearInterval(timer); end(); control.abort(); };
  }, [path]);
  return { ...state, refresh: () => refresh.current() };
}

export function useCollections() {
  const { value, ...rest } = useLive("v1/collections");
  return { ...rest, value: value?.collections ?? null };
}

export function useCollection(name) {
  return useLive(collectionPath(name));
}

/** The work at the index of a collection that runs now, `{what, done, total, unit}`; undefined without one. */
export function useIndexWork(name) {
  return useObservable(sample)?.progress?.find((work) => work.kind === "index" && work.subject === "collection" && work.name === name);
}

/** Read numbers between commas or spaces, with or without brackets. Returns null if the text has anything else. */
export function parseVector(text) {
  const parts = text.trim().replace(/^\[|\]$/g, "").split(/[\s,]+/).filter((part) => part !== "");
  const numbers = parts.map(Number);
  return numbers.length && numbers.every(Number.isFinite) ? numbers : null;
}
