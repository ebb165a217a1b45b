// Runs one request for text, streamed or whole, and gathers its choices with the log probabilities of their tokens.
import { ApiError, call, parseServerTiming, stream } from "../lib/api.js";
import { withinContext } from "./context-room.js";

/** State of a text before its first token. */
export function newText() {
  return {
    phase: "waiting", // waiting, running, done, stopped or failed
    choices: [],
    usage: null,
    error: null,
    timings: [],
    requestId: null,
    firstTokenMs: null,
    totalMs: null,
    isStream: false,
    wanted: null, // the body of the request, and as it was sent
    body: null,
  };
}

/** State of a choice before its first token: a text and its reasoning, the pieces of both, and calls of tools. */
export const newChoice = () => ({ text: "", pieces: [], reasoning: "", thoughts: [], calls: [], finish: null });

/** Return a choice of known texts and calls, without log probabilities. */
export function unstreamed({ text, reasoning, calls, finish }) {
  const piecesOf = (whole) => (whole === "" ? [] : [{ text: whole, tokens: [] }]);
  return { text, pieces: piecesOf(text), reasoning, thoughts: piecesOf(reasoning), calls, finish };
}

/**
 * Send `{path, body, contextTokens}` and call `onChange(text)` with the state so far, at most once in a frame. Never rejects.
 *
 * `contextTokens`: of the model, null if unknown; with it `max_tokens` is reduced to the room beside the prompt.
 * A choice is as `newChoice` returns it. A piece is the text of one event with its tokens `{token, logprob, top}`.
 */
export async function generate({ path, body: wanted, contextTokens }, signal, onChange) {
  const text = { ...newText(), isStream: wanted.stream === true, wanted, body: wanted };
  let startMs = performance.now();
  const show = inFrames(() => onChange({ ...text, choices: text.choices.map((choice) => ({ ...choice })) }));
  const take = (event) => {
    if (event.usage) text.usage = event.usage;
    for (const part of event.choices ?? []) {
      if (addPart(text, part) && text.firstTokenMs === null) text.firstTokenMs = performance.now() - startMs;
    }
    text.phase = "running";
  };
  try {
    if (contextTokens !== undefined) text.body = await withinContext(wanted, contextTokens, signal);
    const { body } = text;
    startMs = performance.now();
    if (text.isStream) {
      await readStream({ path, body }, signal, text, (event) => { take(event); show(); });
    } else {
      const answer = await call("POST", path, { body, signal });
      text.timings = answer.timings;
      text.requestId = answer.headers.get("x-request-id");
      take(answer.value);
    }
    text.phase = "done";
  } catch (error) {
    text.phase = signal.aborted ? "stopped" : "failed";
    text.error = signal.aborted ? null : error;
  }
  text.totalMs = performance.now() - startMs;
  show.now();
  return text;
}

/** Return a request with the body that was sent for it, if a text is its answer. */
export function asSent(request, text) {
  return text?.wanted && isEqual(text.wanted, request.body) ? { ...request, body: text.body } : request;
}

/** Whether two values of JSON are the same. Pictures make them too large to compare as texts for each token. */
function isEqual(one, other) {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return one === other;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => isEqual(one[name], other[name]));
}

async function readStream({ path, body }, signal, text, take) {
  const onOpen = (response) => {
    text.timings = parseServerTiming(response.headers.get("server-timing"));
    text.requestId = response.headers.get("x-request-id");
  };
  for await (const { data } of stream("POST", path, { body, signal, onOpen })) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    // The head of the response had the status 200 by then.
    if (event.error) throw new ApiError(0, String(event.error.code ?? event.error.type), event.error.message);
    take(event);
  }
}

/** Add a part of a choice, of a chat or a completion, streamed or whole. Returns whether it had text, reasoning or calls. */
function addPart(text, part) {
  const choice = (text.choices[part.index] ??= newChoice());
  const message = part.delta ?? part.message ?? { content: part.text };
  const content = message.content ?? "";
  const reasoning = message.reasoning_content ?? "";
  // A whole message has one list of tokens for both texts.
  const tokens = content !== "" && reasoning !== "" ? [] : tokensOf(part.logprobs);
  choice.text += content;
  choice.reasoning += reasoning;
  if (reasoning !== "") choice.thoughts.push(...splitPieces(reasoning, tokens));
  if (content !== "" || (reasoning === "" && tokens.length > 0)) choice.pieces.push(...splitPieces(content, tokens));
  for (const each of message.tool_calls ?? []) addCall(choice.calls, each);
  if (part.finish_reason) choice.finish = part.finish_reason;
  return content !== "" || reasoning !== "" || (message.tool_calls ?? []).length > 0;
}

function addCall(calls, part) {
  const at = part.index ?? calls.length;
  const known = (calls[at] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
  known.function.name += part.function?.name ?? "";
  known.function.arguments += part.function?.arguments ?? "";
}

/** Return `{token, logprob, top}` of each token, from the log probabilities of a chat or of a completion. */
function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((each) => ({
      token: each.token,
      logprob: each.logprob,
      top: (each.top_logprobs ?? []).map(({ token, logprob }) => ({ token, logprob })),
    }));
  }
  return (logprobs.tokens ?? []).map((token, at) => ({
    token,
    logprob: logprobs.token_logprobs[at],
    top: Object.entries(logprobs.top_logprobs?.[at] ?? {}).map(([each, logprob]) => ({ token: each, logprob })),
  }));
}

/** Return a piece for each token; one for all if they are not the text: half characters, or tokens written as ids. */
function splitPieces(content, tokens) {
  const isExact = tokens.map((each) => each.token).join("") === content;
  if (!isExact || tokens.length === 0) return [{ text: content, tokens }];
  return tokens.map((each) => ({ text: each.token, tokens: [each] }));
}

/** Return a function that calls `draw` with the next frame, once for all calls before it; `now` calls it at once. */
function inFrames(draw) {
  let frame = null;
  const show = () => { frame ??= requestAnimationFrame(() => { frame = null; draw(); }); };
  show.now = () => {
    if (frame !== null) cancelAnimationFrame(frame);
    frame = null;
    draw();
  };
  return show;
}
