// One stream of events, opened again after each end, with growing pauses.
import { ApiError, open } from "./api.js";
import { readEvents } from "./sse.js";

export const CONNECTING = "connecting";
export const CONNECTED = "connected";
export const RECONNECTING = "reconnecting";
export const AWAY = "away";
export const REFUSED = "refused";

const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 10_000;
/** After so long without a connection the server counts as away. */
const AWAY_AFTER_MS = 3_000;
/** A stream without any byte for so long is dead: a cable may be pulled without an error here. */
const SILENCE_MS = 45_000;

export class EventStream {
  #path;
  #onEvent;
  #onState;
  #control = null;
  #state = { phase: CONNECTING, error: null };
  #stopped = true;
  #wake = () => {};

  /** `onEvent({event, data})`: data is parsed JSON. `onState({phase, error})`: after each change. */
  constructor({ path, onEvent, onState }) {
    this.#path = path;
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  start() {
    if (!this.#stopped) return;
    this.#stopped = false;
    this.#set(CONNECTING, null);
    this.#run();
  }

  stop() {
    this.#stopped = true;
    this.#control?.abort();
    this.#wake();
  }

  /** Connect at once: after another key, or when the network is back. */
  restart() {
    this.#control?.abort();
    this.#wake();
  }

  async #run() {
    const hurry = () => { if (!document.hidden && this.#state.phase !== CONNECTED) this.#wake(); };
    addEventListener("online", hurry);
    document.addEventListener("visibilitychange", hurry);
    let pause = FIRST_PAUSE_MS;
    let since = performance.now();
    while (!this.#stopped) {
      let error = null;
      try {
        await this.#readOnce(() => { pause = FIRST_PAUSE_MS; });
      } catch (caught) {
        error = caught;
      }
      if (this.#stopped) break;
      if (this.#state.phase === CONNECTED) since = performance.now();
      if (error instanceof ApiError && error.needsKey) {
        this.#set(REFUSED, error);
        await this.#pauseFor(null);
        since = performance.now();
        continue;
      }
      const isAway = performance.now() - since >= AWAY_AFTER_MS;
      this.#set(isAway ? AWAY : RECONNECTING, error instanceof ApiError ? error : null);
      // Pages that lost the same server do not all return in the same moment.
      await this.#pauseFor(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, MAX_PAUSE_MS);
    }
    removeEventListener("online", hurry);
    document.removeEventListener("visibilitychange", hurry);
  }

  async #readOnce(onConnected) {
    const control = (this.#control = new AbortController());
    let heard = performance.now();
    const watch = setInterval(() => { if (performance.now() - heard > SILENCE_MS) control.abort(); }, 5_000);
    try {
      const response = await open("GET", this.#path, { signal: control.signal, headers: { accept: "text/event-stream" } });
      onConnected();
      this.#set(CONNECTED, null);
      for await (const each of readEvents(response, { onBytes: () => { heard = performance.now(); } })) {
        this.#onEvent({ event: each.event, data: JSON.parse(each.data) });
      }
    } finally {
      clearInterval(watch);
      control.abort();
    }
  }

  #pauseFor(ms) {
    return new Promise((resolve) => {
      const timer = ms === null ? null : setTimeout(resolve, ms);
      this.#wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  #set(phase, error) {
    if (phase === this.#state.phase && error?.message === this.#state.error?.message) return;
    this.#state = { phase, error };
    this.#onState(this.#state);
  }
}
