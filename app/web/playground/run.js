// One request of a tool: what is sent is also what its snippets show.
import { call } from "../lib/api.js";
import { useEffect, useRef, useState } from "../lib/html.js";
import { formData } from "./snippets-form.js";
import { bodyText } from "./snippets.js";

/** Nothing was sent yet. */
export const IDLE = { phase: "idle", answer: null, error: null };

/**
 * Send requests `{path, body}` or `{path, form}`, one at a time: `{run, start, stop}`.
 *
 * `run`: `{phase, answer, error}` with the phase `idle`, `busy`, `done`, `failed` or `stopped`. The last answer stays
 * until the next one is here. `answer`: as api.js's `call` returns it, with the `request`.
 */
export function useRun() {
  const [run, setRun] = useState(IDLE);
  const control = useRef(null);
  const stop = () => control.current?.abort();
  useEffect(() => stop, []);
  const start = async (request) => {
    stop();
    const current = (control.current = new AbortController());
    setRun((before) => ({ ...before, phase: "busy", error: null }));
    try {
      const body = request.form ? formData(request.form) : bodyText(request);
      const answer = await call("POST", request.path, { body, signal: current.signal });
      if (control.current === current) setRun({ phase: "done", answer: { ...answer, request }, error: null });
      return answer;
    } catch (error) {
      const phase = current.signal.aborted ? "stopped" : "failed";
      if (control.current === current) setRun((before) => ({ ...before, phase, error: phase === "failed" ? error : null }));
      return null;
    }
  };
  return { run, start, stop };
}

/** Return an object without the members that are undefined: an option that is not set is not sent. */
export function given(members) {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}

/** Return the lines of a text that hold something. */
export const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
