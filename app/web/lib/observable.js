// A value with listeners, and the hook that draws a component again after a change.
import { useEffect, useReducer, useRef } from "./html.js";

export class Observable {
  #listeners = new Set();

  constructor(value) {
    this.value = value;
  }

  set(value) {
    if (Object.is(value, this.value)) return;
    this.value = value;
    this.notify();
  }

  /** Call the listeners, after a change inside of the value. */
  notify() {
    for (const listener of [...this.#listeners]) listener(this.value);
  }

  /** Returns a function that ends it. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  get listeners() {
    return this.#listeners.size;
  }
}

/** Return the value of an Observable; the component is drawn again after each change. */
export function useObservable(observable) {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const drawn = useRef(null);
  drawn.current = observable.value;
  useEffect(() => {
    // It may have changed between the drawing and this moment.
    if (!Object.is(drawn.current, observable.value)) redraw();
    return observable.listen(redraw);
  }, [observable]);
  return observable.value;
}
