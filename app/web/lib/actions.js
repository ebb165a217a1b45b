// Orders to models that are in progress. They live here, not in a view, so that another view does not forget them.
import { modelPath, sendJson } from "./api.js";
import { Observable } from "./observable.js";

/** Map: model -> {label, startedAt (ms), error, done, note}. One order for each model at a time. `note`: text at its end. */
export const actions = new Observable(new Map());

const DONE_SHOWN_MS = 6_000;
const listeners = new Set();

/** Call `listener(name)` when an order has ended, whatever its end. Returns a function that ends it. */
export function onActionEnd(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/**
 * Send an order and keep its progress. `label`: "Unloading", as it is shown. `noteOf(answer)`: what to say at its end.
 * Returns whether it succeeded.
 */
export async function order(name, label, method, rest, body, noteOf = () => null) {
  return track(name, label, async () => noteOf(await sendJson(method, modelPath(name, rest), body)));
}

/** Keep the progress of any work for a model, which may return a note. Returns whether it succeeded. */
export async function track(name, label, work) {
  if (actions.value.get(name)?.done === false) return false;
  const action = { label, startedAt: performance.now(), error: null, done: false, note: null };
  put(name, action);
  let error = null;
  let note = null;
  try {
    note = (await work()) ?? null;
  } catch (caught) {
    error = caught;
  }
  const ended = { ...action, error, note, done: true };
  put(name, ended);
  for (const listener of [...listeners]) listener(name);
  if (error === null && note === null) setTimeout(() => { if (actions.value.get(name) === ended) dismiss(name); }, DONE_SHOWN_MS);
  return error === null;
}

export function dismiss(name) {
  const next = new Map(actions.value);
  next.delete(name);
  actions.set(next);
}

function put(name, action) {
  actions.set(new Map(actions.value).set(name, action));
}
