// Where the time of a request went.
import { Waterfall } from "../components/waterfall.js";
import { html } from "../lib/html.js";

/** An answer as api.js's `call` returns it: the phases of Server-Timing, within the time that the page saw. */
export function Timing({ timings, elapsedMs }) {
  return html`<h2>Time of the request</h2><${Waterfall} phases=${timings} totalMs=${elapsedMs} rest="network" />`;
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
