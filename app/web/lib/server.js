// What the page knows of the server, from one stream of events that lives as long as the page.
import { CONNECTING, EventStream } from "./events.js";
import { onKey } from "./key.js";
import { Observable } from "./observable.js";

/** {phase, error} of the stream; see events.js. */
export const connection = new Observable({ phase: CONNECTING, error: null });

const handlers = new Map();

/** Call `handler(data)` for events of a kind. Returns a function that ends it. */
export function onServerEvent(kind, handler) {
  if (!handlers.has(kind)) handlers.set(kind, new Set());
  handlers.get(kind).add(handler);
  return () => handlers.get(kind).delete(handler);
}

const stream = new EventStream({
  path: "events",
  onEvent: ({ event, data }) => { for (const handler of [...(handlers.get(event) ?? [])]) handler(data); },
  onState: (state) => connection.set(state),
});

export function connect() {
  onKey(() => stream.restart());
  stream.start();
}
