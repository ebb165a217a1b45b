// The room for a generated text in the context of a model, beside the prompt.
import { sendJson } from "../lib/api.js";
import { countPictures } from "./conversation.js";

/** More than a chat template adds to the messages. */
const TEMPLATE_TOKENS = 256;
/** Fields of a request that the prompt depends on. */
const PROMPT_FIELDS = ["model", "prompt", "messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"];

/** Return `contextOf(model)`: the tokens of a model's context, null if unknown. `own`: the model `name`, `models`: the list. */
export function contextsOf(name, own, models) {
  const listed = (model) => models.find((each) => each.name === model)?.contextTokens;
  return (model) => (model === name ? own.version_details[own.active_version]?.max_tokens : listed(model)) ?? null;
}

/**
 * Return a body whose `max_tokens` is reduced to the room beside its prompt.
 *
 * `contextTokens`: of the model, null if unknown. The server counts the prompt only if it may be too long. Where it does
 * not fit at all, or cannot be counted, the body stays: the request is then refused with the reason. The tokens of
 * pictures are not counted.
 */
export async function withinContext(body, contextTokens, signal) {
  if (countPictures(body.messages ?? []) > 0) return body;
  const asked = Object.fromEntries(PROMPT_FIELDS.filter((name) => name in body).map((name) => [name, body[name]]));
  // A token is a byte or more.
  const most = new TextEncoder().encode(JSON.stringify(asked)).length + TEMPLATE_TOKENS;
  if (contextTokens !== null && most + body.max_tokens <= contextTokens) return body;
  try {
    const { count, max_model_len: limit } = await sendJson("POST", "v1/tokenize", asked, { signal });
    const room = limit - count;
    return room >= 1 && room < body.max_tokens ? { ...body, max_tokens: room } : body;
  } catch {
    return body;
  }
}
