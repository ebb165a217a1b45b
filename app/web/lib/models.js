// One model in detail, read again after orders and after events of the server.
import { actions, onActionEnd } from "./actions.js";
import { getJson, modelPath } from "./api.js";
import { useEffect, useState } from "./html.js";
import { models } from "./server.js";

const PROGRESS_MS = 1_000;

/** Return {detail, error} of one model. While an order to it runs it is read once a second, for its progress. */
export function useModel(name) {
  const [value, setValue] = useState({ detail: null, error: null });
  useEffect(() => {
    let control = new AbortController();
    const refresh = async () => {
      control.abort();
      const current = (control = new AbortController());
      try {
        const detail = await getJson(modelPath(name), { signal: current.signal });
        setValue({ detail, error: null });
      } catch (error) {
        if (!current.signal.aborted) setValue(({ detail }) => ({ detail: error.status === 404 ? null : detail, error }));
      }
    };
    const timer = setInterval(() => { if (actions.value.get(name)?.done === false) refresh(); }, PROGRESS_MS);
    const ends = [onActionEnd(refresh), models.listen(refresh)];
    refresh();
    return () => { clearInterval(timer); ends.forEach((end) => end()); control.abort(); };
  }, [name]);
  return value;
}
