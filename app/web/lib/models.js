// The registered models as the views show them, read again after orders and after events of the server.
import { actions, onActionEnd } from "./actions.js";
import { getJson, modelPath } from "./api.js";
import { CONNECTED } from "./events.js";
import { useEffect, useState } from "./html.js";
import { onKey } from "./key.js";
import { Observable } from "./observable.js";
import { connection, onServerEvent } from "./server.js";

/** {list, error}: the models of GET /models, or null before the first answer. */
export const models = new Observable({ list: null, error: null });

const PROGRESS_MS = 1_000;
let running = false;
let again = false;

/** Read GET /models. Calls while one runs become one more call after it. */
export async function refreshModels() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  do {
    again = false;
    try {
      models.set({ list: (await getJson("models")).models, error: null });
    } catch (error) {
      models.set({ list: models.value.list, error });
    }
  } while (again);
  running = false;
}

/** Call `refresh` after anything that may have changed a model. Returns a function that ends it. */
function onModelChange(refresh) {
  const ends = [
    onActionEnd(refresh),
    onKey(refresh),
    onServerEvent("models", refresh),
    connection.listen(({ phase }) => { if (phase === CONNECTED) refresh(); }),
  ];
  return () => ends.forEach((end) => end());
}

/** Return `models.value` and keep it up to date while the component is drawn. */
export function useModels() {
  const [value, setValue] = useState(models.value);
  useEffect(() => {
    const ends = [models.listen(setValue), onModelChange(refreshModels)];
    refreshModels();
    return () => ends.forEach((end) => end());
  }, []);
  return value;
}

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
    const end = onModelChange(refresh);
    refresh();
    return () => { clearInterval(timer); end(); control.abort(); };
  }, [name]);
  return value;
}
