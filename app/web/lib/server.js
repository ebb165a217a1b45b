// What the page knows of the server, from one stream of events that lives as long as the page.
import { getJson } from "./api.js";
import { CONNECTING, EventStream } from "./events.js";
import { History } from "./history.js";
import { onKey } from "./key.js";
import { Observable } from "./observable.js";

export const MAX_REQUESTS = 200;

/** {phase, error} of the stream; see events.js. */
export const connection = new Observable({ phase: CONNECTING, error: null });
/** The server and the rights of the key: the event `hello`, or null before it. */
export const hello = new Observable(null);
/** The registered models in their order, or null before the first event. */
export const models = new Observable(null);
/** The newest numbers: the event `sample`, or null before it. */
export const sample = new Observable(null);
/** The last 15 minutes. The object stays the same: listeners are called after each change of it. */
export const history = new Observable(new History());
/** The last requests, newest first, or null before the first event. */
export const requests = new Observable(null);

const handlers = {
  hello: (data) => hello.set(data),
  models: (data) => models.set(data.models),
  history: (data) => {
    history.value.replace(data, hello.value?.history_s);
    history.notify();
  },
  sample: (data) => {
    history.value.append(data);
    sample.set(data);
    history.notify();
  },
  requests: (data) => {
    if (data.missed && requests.value !== null) readRequests();
    else requests.set(merged(data.requests, isNewStream ? [] : requests.value ?? []));
    isNewStream = false;
  },
};
let isNewStream = true;

const stream = new EventStream({
  path: "events",
  onEvent: ({ event, data }) => {
    if (event === "hello") isNewStream = true;
    handlers[event]?.(data);
  },
  onState: (state) => connection.set(state),
});

/** Start the stream. Another key begins without the numbers that the last one was allowed to see. */
export function connect() {
  onKey(() => {
    for (const each of [hello, models, sample, requests]) each.set(null);
    history.value = new History();
    history.notify();
    stream.restart();
  });
  stream.start();
}

/** Connect at once instead of after the pause. */
export function connectNow() {
  stream.restart();
}

async function readRequests() {
  try {
    requests.set((await getJson(`requests?limit=${MAX_REQUESTS}`)).requests);
  } catch { /* the next event brings the newest ones */ }
}

function merged(newer, older) {
  const known = new Set(newer.map((record) => record.key));
  return [...newer, ...older.filter((record) => !known.has(record.key))].slice(0, MAX_REQUESTS);
}
