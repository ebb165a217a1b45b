// One generated text of a model: its choices, its figures, and what ended it.
import { ErrorNotice } from "../components/message.js";
import { formatDuration, formatNumber } from "../lib/format.js";
import { html } from "../lib/html.js";
import { callText } from "./conversation.js";
import { newChoice } from "./generation.js";
import { TokenText } from "./tokens.js";

const ENDS = {
  stop: "ended by the model or a stop text",
  length: "ended at the maximum of tokens",
  tool_calls: "asks for a tool",
  stopped: "stopped by you",
};

/** `text`: the state that generation.js reports. */
export function TextResult({ text }) {
  const isRunning = text.phase === "waiting" || text.phase === "running";
  const choices = text.choices.length ? text.choices : isRunning ? [newChoice()] : [];
  return html`
    ${choices.map((choice, at) => html`<div key=${at} class="pg-choice-text">
      ${choices.length > 1 ? html`<p class="detail">Text ${at + 1} of ${choices.length}</p>` : null}
      ${choice.thoughts.length ? html`<details class="pg-thoughts" open=${isRunning && choice.text === ""}>
        <summary>Reasoning</summary><${TokenText} pieces=${choice.thoughts} isRunning=${false} /></details>` : null}
      <${TokenText} pieces=${choice.pieces} isRunning=${isRunning && choice.finish === null} />
      ${choice.calls.map((each, index) => html`<pre key=${index} class="pg-call" tabindex="0"
        aria-label="Tool call">${callText(each)}</pre>`)}
      ${!isRunning && choice.pieces.length === 0 && choice.calls.length === 0 ? html`<p class="muted">The text is empty.</p>` : null}
    </div>`)}
    ${text.error ? html`<${ErrorNotice} error=${text.error} />` : null}
    <${Figures} text=${text} />`;
}

/** Tokens, tokens per second, time to the first token and the reason of the end. */
function Figures({ text }) {
  const parts = [];
  const tokens = countTokens(text);
  if (tokens) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  if (text.firstTokenMs !== null && text.isStream) parts.push(`first after ${formatDuration(text.firstTokenMs / 1000)}`);
  const seconds = text.totalMs === null ? null : (text.totalMs - (text.isStream ? (text.firstTokenMs ?? 0) : 0)) / 1000;
  if (seconds && tokens > 1) parts.push(`${formatNumber(tokens / seconds)} tokens/s`);
  const ends = text.phase === "stopped" ? ["stopped"] : [...new Set(text.choices.map((choice) => choice.finish).filter(Boolean))];
  parts.push(...ends.map((end) => ENDS[end] ?? end));
  const isRunning = text.phase === "waiting" || text.phase === "running";
  return html`
    <p class="detail pg-figures" data-phase=${text.phase}>${parts.join(" · ") || (isRunning ? "waiting for the first token" : "")}</p>
    <p class="visually-hidden" role="status">${isRunning ? "The text is being generated" : `The text is complete: ${parts.join(", ")}`}</p>`;
}

/** Return the number of generated tokens: of the server's count, or of the pieces of a text that was stopped. */
export function countTokens(text) {
  if (text.usage) return text.usage.completion_tokens;
  const pieces = text.choices.flatMap((choice) => [...choice.thoughts, ...choice.pieces]);
  return pieces.reduce((sum, piece) => sum + (piece.tokens.length || 1), 0);
}
