/**
 * Return a function that runs `task(value)` for the newest value, at most one at a time.
 *
 * Values that arrive while a task runs replace each other; the last of them runs next. `task` must not reject.
 */
export function latestOnly(task) {
  let isRunning = false;
  let waiting = null;
  return async function push(value) {
    waiting = { value };
    if (isRunning) return;
    isRunning = true;
    while (waiting !== null) {
      const next = waiting.value;
      waiting = null;
      await task(next);
    }
    isRunning = false;
  };
}
