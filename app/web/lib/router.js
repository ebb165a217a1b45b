// Views by the part of the address after "#": #/overview, #/models/<name>, #/requests?model=<name>, #/requests/<id>,
// #/manual/<page>?heading=<id>.
import { useEffect, useMemo, useState } from "./html.js";

export const VIEWS = ["overview", "models", "playground", "collections", "requests", "manual"];

/** Return {view, name, query, known} of a hash. `name`: null without one. */
export function parseHash(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view, ...rest] = path.split("/");
  const query = Object.fromEntries(new URLSearchParams(search));
  const name = rest.length && rest[0] !== "" ? decode(rest.join("/")) : null;
  if (view === "") return { view: "overview", name: null, query, known: true };
  return { view, name, query, known: VIEWS.includes(view) };
}

/** Return the hash of a view. `name`: of a model, collection or page of the manual, or the id of a request. `query`: empty values are left out. */
export function link(view, name = null, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return `#/${view}${name === null ? "" : `/${encodeURIComponent(name)}`}${search}`;
}

export function useRoute() {
  const [hash, setHash] = useState(() => location.hash);
  useEffect(() => {
    const follow = () => setHash(location.hash);
    addEventListener("hashchange", follow);
    follow(); // it may have changed between the drawing and this moment
    return () => removeEventListener("hashchange", follow);
  }, []);
  return useMemo(() => parseHash(hash), [hash]);
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
