// The messages of a conversation: questions, answers, calls of tools, and the results that a person gives for them.

/**
 * Return the messages of one side up to the question `next`, as OpenAI's chat takes them.
 *
 * A turn is `{user, pictures}`, or `{results}` with the results of calls by side: `[{id, content}]`. `answerOf(turn)`:
 * the first choice of the answer; none of a turn that failed, which is left out with its question. `sees`: whether the
 * model reads pictures; see chat-pictures.js.
 */
export function messagesOf(side, system, turns, answerOf, next, sees = false) {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  const answered = turns.filter((turn) => asks(side, turn) && answerOf(turn));
  for (const [at, turn] of answered.entries()) {
    messages.push(...questionsOf(side, turn, sees), answerMessage(answerOf(turn), (answered[at + 1] ?? next).results?.[side]));
  }
  return [...messages, ...questionsOf(side, next, sees)];
}

/** Return the calls of an answer that wait for results; none if it was stopped, or cut within a call. */
export function openCalls(text) {
  const calls = text?.phase === "done" ? (text.choices[0]?.calls ?? []) : [];
  return calls.every((call) => isJson(call.function.arguments)) ? calls : [];
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Whether a side takes part in a turn: results are for the sides whose model has called. */
export const asks = (side, turn) => !turn.results || side in turn.results;

function questionsOf(side, turn, sees) {
  if (!turn.results) return [{ role: "user", content: contentOf(turn.user, sees ? sendablePictures(turn) : []) }];
  return turn.results[side].map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
}

/** Return the pictures of a turn that are still here: the browser may have kept their names alone. */
export const sendablePictures = (turn) => (turn.pictures ?? []).filter(({ url }) => url !== null);

/** Return the content of a message: parts if it has pictures, with the text behind them. */
function contentOf(text, pictures) {
  if (pictures.length === 0) return text;
  const images = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text.trim() === "" ? images : [...images, { type: "text", text }];
}

/** Return how many pictures messages have. */
export function countPictures(messages) {
  const parts = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  return parts.filter(({ type }) => type === "image_url").length;
}

/** Without results for all its calls, a template refuses the calls of a message: they are then its text. */
function answerMessage(choice, results) {
  const reasoning = choice.reasoning === "" ? {} : { reasoning_content: choice.reasoning };
  if (results && choice.calls.length) return { role: "assistant", content: choice.text || null, ...reasoning, tool_calls: choice.calls };
  return { role: "assistant", content: choice.text || choice.calls.map(callText).join("\n"), ...reasoning };
}

/** Return an answer as plain text: the texts and calls of its choices, without the reasoning. */
export function plainText(text) {
  const texts = (text?.choices ?? []).map((choice) => [choice.text, ...choice.calls.map(callText)].filter(Boolean).join("\n"));
  return texts.filter(Boolean).join("\n\n");
}

/** Return a call as it is shown. */
export const callText = (call) => `${call.function.name}(${call.function.arguments})`;
