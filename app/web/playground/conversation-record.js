// A conversation as it is kept: its messages without log probabilities, and a check of values that were read.
import { ApiError } from "../lib/api.js";
import { newText, unstreamed } from "./generation.js";
import { countTokens } from "./text-result.js";

const ENDED = ["done", "stopped", "failed"];
const TITLE_CHARACTERS = 80;
/** Of the pictures of a conversation, as text in base64. Larger ones would leave no room for other conversations. */
const MAX_PICTURE_CHARACTERS = 512 * 1024;

/**
 * Return a conversation `{id, model, updated, system, second, options, turns}` as JSON can hold it.
 *
 * `updated`: milliseconds since 1970. `options`: the changed values of the form. A text that runs is kept as stopped.
 * Of pictures without room, only the name is kept.
 */
export function packConversation(conversation) {
  const packPicture = picturesPacker();
  const packTurn = ({ pictures, ...turn }) => ({
    ...turn,
    ...(pictures ? { pictures: pictures.map(packPicture) } : {}),
    texts: mapValues(turn.texts, packText),
  });
  return { ...conversation, turns: conversation.turns.map(packTurn) };
}

/** Return a function that packs the pictures of a conversation one by one. */
function picturesPacker() {
  let room = MAX_PICTURE_CHARACTERS;
  return ({ name, url, width, height }) => {
    const isKept = url !== null && url.length <= room;
    if (isKept) room -= url.length;
    return { name, url: isKept ? url : null, width, height };
  };
}

/** Return the conversation of a parsed value; null if the value is damaged. */
export function unpackConversation(value) {
  if (!isConversation(value)) return null;
  return { ...value, turns: value.turns.map((turn) => ({ ...turn, texts: mapValues(turn.texts, unpackText) })) };
}

/** Return the beginning of a conversation in one line: of its text, or the name of its picture. */
export function titleOf({ turns }) {
  const first = turns.find((turn) => turn.user !== undefined);
  const text = (first?.user ?? "").replace(/\s+/g, " ").trim() || (first?.pictures?.[0]?.name ?? "");
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
const isPicture = hasAll({
  name: isString,
  url: orNull((value) => isString(value) && value.startsWith("data:image/")),
  width: isNumber,
  height: isNumber,
});
const isTurn = (value) => hasAll({ texts: isMapOf(isText) })(value)
  && (value.pictures === undefined || isListOf(isPicture)(value.pictures))
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
