// The messages of a conversation: questions, answers, calls of tools, and the results that a person gives for them.

/**
 * Return the messages of one side up to the question `next`, as OpenAI's chat takes them.
 *
 * A turn is `{user}`, or `{results}` with the results of calls by side: `[{id, content}]`. `answerOf(turn)`: the first
 * choice of the answer; none of a turn that failed, which is left out with its question.
 */
export function messagesOf(side, system, turns, answerOf, next) {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  const answered = turns.filter((turn) => asks(side, turn) && answerOf(turn));
  for (const [at, turn] of answered.entries()) {
    messages.push(...questionsOf(side, turn), answerMessage(answerOf(turn), (answered[at + 1] ?? next).results?.[side]));
  }
  return [...messages, ...questionsOf(side, next)];
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

function questionsOf(side, turn) {
  if (!turn.results) return [{ role: "user", content: turn.user }];
  return turn.results[side].map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
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
