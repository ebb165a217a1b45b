// A conversation as it is kept: its messages without log probabilities, and a check of values that were read.
import { ApiError } from "../lib/api.js";
import { newText, unstreamed } from "./generation.js";
import { countTokens } from "./text-result.js";

const ENDED = ["done", "stopped", "failed"];
const TITLE_CHARACTERS = 80;

/**
 * Return a conversation `{id, model, updated, system, second, options, turns}` as JSON can hold it.
 *
 * `updated`: milliseconds since 1970. `options`: the changed values of the form. A text that runs is kept as stopped.
 */
export function packConversation(conversation) {
  return { ...conversation, turns: conversation.turns.map((turn) => ({ ...turn, texts: mapValues(turn.texts, packText) })) };
}

/** Return the conversation of a parsed value; null if the value is damaged. */
export function unpackConversation(value) {
  if (!isConversation(value)) return null;
  return { ...value, turns: value.turns.map((turn) => ({ ...turn, texts: mapValues(turn.texts, unpackText) })) };
}

/** Return the beginning of a conversation in one line. */
export function titleOf({ turns }) {
  const text = (turns.find((turn) => turn.user !== undefined)?.user ?? "").replace(/\s+/g, " ").trim();
  return text.length > TITLE_CHARACTERS ? `${text.slice(0, TITLE_CHARACTERS)} …` : text;
}

function packText(text) {
  const { phase, choices, error, firstTokenMs, totalMs, isStream } = text;
  return {
    phase: ENDED.includes(phase) ? phase : "stopped",
    choices: choices.filter(Boolean).map(({ text, reasoning, calls, finish }) => ({ text, reasoning, calls, finish })),
    tokens: countTokens(text),
    error: error && { status: error.status ?? 0, code: error.code ?? "", message: error.message },
    firstTokenMs,
    totalMs,
    isStream,
  };
}

function unpackText({ choices, tokens, error, ...others }) {
  return {
    ...newText(),
    ...others,
    choices: choices.map(unstreamed),
    usage: { completion_tokens: tokens },
    error: error && new ApiError(error.status, error.code, error.message),
  };
}

function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
}

const isString = (value) => typeof value === "string";
const isNumber = Number.isFinite;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isListOf = (isItem) => (value) => Array.isArray(value) && value.every(isItem);
const isMapOf = (isItem) => (value) => isObject(value) && Object.values(value).every(isItem);
const orNull = (isValue) => (value) => value === null || isValue(value);
/** Return a check of an object: each name has a check of its value. Other names are allowed. */
const hasAll = (checks) => (value) => isObject(value) && Object.entries(checks).every(([name, isValid]) => isValid(value[name]));

const isCall = hasAll({ id: isString, type: isString, function: hasAll({ name: isString, arguments: isString }) });
const isChoice = hasAll({ text: isString, reasoning: isString, calls: isListOf(isCall), finish: orNull(isString) });
const isText = hasAll({
  phase: (value) => ENDED.includes(value),
  choices: isListOf(isChoice),
  tokens: isNumber,
  error: orNull(hasAll({ status: isNumber, code: isString, message: isString })),
  firstTokenMs: orNull(isNumber),
  totalMs: orNull(isNumber),
  isStream: (value) => typeof value === "boolean",
});
const isResults = isMapOf(isListOf(hasAll({ id: isString, content: isString })));
const isTurn = (value) => hasAll({ texts: isMapOf(isText) })(value)
  && (value.results === undefined ? isString(value.user) : value.user === undefined && isResults(value.results));
const isConversation = hasAll({
  id: isString,
  model: isString,
  updated: isNumber,
  system: isString,
  second: orNull(isString),
  options: isObject,
  turns: (value) => isListOf(isTurn)(value) && value.length > 0,
});
