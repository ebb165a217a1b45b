// Where the time of a request went.
import { Waterfall } from "../components/waterfall.js";
import { html } from "../lib/html.js";

const STEP = "step-";

/** An answer as api.js's `call` returns it: the phases of Server-Timing, within the time that the page saw. */
export function Timing({ timings, elapsedMs }) {
  const phases = phasesOf(timings, elapsedMs);
  return html`<h2>Time of the request</h2><${Waterfall} phases=${phases} totalMs=${elapsedMs} rest="network" />`;
}

/**
 * Return the phases of Server-Timing: of a pipeline its steps instead of the queue and the computation, which are sums
 * over them. Branches run in parallel, so a step starts early enough to end within the request.
 */
export function phasesOf(timings, elapsedMs) {
  if (!timings.some((phase) => phase.name.startsWith(STEP))) return timings;
  const named = (name) => timings.filter((phase) => phase.name === name);
  let end = named("decode").reduce((sum, phase) => sum + phase.durationMs, 0);
  const steps = timings.filter((phase) => phase.name.startsWith(STEP)).map(({ name, durationMs }) => {
    const startMs = Math.max(0, Math.min(end, elapsedMs - durationMs));
    end = startMs + durationMs;
    return { name, label: `Step ${name.slice(STEP.length)}`, startMs, durationMs };
  });
  return [...named("decode"), ...steps, ...named("encode")];
}

/** A text that has ended. A stream has the server's decoding only: its head was sent before the first token. */
export function TextTiming({ text }) {
  if (!text.isStream || text.firstTokenMs === null) return html`<${Timing} timings=${text.timings} elapsedMs=${text.totalMs} />`;
  const decode = text.timings.filter((phase) => phase.name === "decode" && phase.durationMs < text.firstTokenMs);
  const beforeMs = decode.reduce((sum, phase) => sum + phase.durationMs, 0);
  const phases = [
    ...decode,
    { name: "first_token", durationMs: text.firstTokenMs - beforeMs },
    { name: "stream", durationMs: text.totalMs - text.firstTokenMs },
  ];
  return html`<h2>Time of the text</h2><${Waterfall} phases=${phases} totalMs=${text.totalMs} />`;
}
