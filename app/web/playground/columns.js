// Runs of one or two models side by side with the same input.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { generate, newText } from "./generation.js";

/**
 * Return `{texts, isRunning, start, stop, clear}` of several models.
 *
 * `texts`: by the name of the model, the state that generation.js reports. `start([{name, path, body}])` ends what runs.
 */
export function useTexts() {
  const [texts, setTexts] = useState({});
  const control = useRef(null);
  const stop = () => control.current?.abort();
  useEffect(() => stop, []);
  const start = async (requests) => {
    stop();
    const current = (control.current = new AbortController());
    setTexts(Object.fromEntries(requests.map(({ name }) => [name, newText()])));
    const update = (name) => (text) => {
      if (control.current === current) setTexts((all) => ({ ...all, [name]: text }));
    };
    const ended = await Promise.all(
      requests.map(async (each) => [each.name, await generate(each, current.signal, update(each.name))]),
    );
    return Object.fromEntries(ended);
  };
  const clear = () => { stop(); control.current = null; setTexts({}); };
  const isRunning = Object.values(texts).some((text) => text.phase === "waiting" || text.phase === "running");
  return { texts, isRunning, start, stop, clear };
}

/** Choose a second model of the same task, or none. */
export function CompareWith({ name, models, second, onChange }) {
  const others = models.filter((model) => model.task === "generate" && model.name !== name).map((model) => model.name);
  return html`<label class="row pg-compare">Compare with
    <select value=${second ?? ""} onChange=${(event) => onChange(event.currentTarget.value || null)}>
      <option value="">no other model</option>
      <option value=${name}>${name} again</option>
      ${others.map((each) => html`<option key=${each}>${each}</option>`)}
    </select></label>`;
}
