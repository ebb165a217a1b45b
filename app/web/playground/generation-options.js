// The options of text generation: one row each. Only what the user sets is sent.
import { linesOf } from "./run.js";

/** Of a text, unless the context of the model is small. */
const DEFAULT_TOKENS = 512;

/** Kinds: `number`, `integer`, `flag`, `lines` (one text per line), `integers`, `json`, `text`, `choice` (of `values`). */
const SAMPLING = [
  { name: "temperature", kind: "number", min: 0, max: 100, step: 0.1, hint: "0 always takes the most likely token" },
  { name: "top_p", kind: "number", min: 0, max: 1, step: 0.05, hint: "above 0, up to 1" },
  { name: "top_k", kind: "integer", min: -1, hint: "0 or -1: all tokens" },
  { name: "min_p", kind: "number", min: 0, max: 1, step: 0.05, hint: "share of the most likely token" },
  { name: "seed", kind: "integer", min: 0, hint: "the same seed gives the same text" },
  { name: "n", label: "Texts (n)", kind: "integer", min: 1, max: 128 },
];
const LENGTH = [
  { name: "max_tokens", kind: "integer", min: 0, initial: String(DEFAULT_TOKENS) },
  { name: "min_tokens", kind: "integer", min: 0 },
  { name: "stop", kind: "lines", hint: "one per line; the text ends before it" },
  { name: "stop_token_ids", kind: "integers", hint: "ids with commas" },
  { name: "ignore_eos", kind: "flag", hint: "go on after the end token" },
  { name: "include_stop_str_in_output", kind: "flag", hint: "the text ends with the stop string" },
];
const PENALTIES = [
  { name: "repetition_penalty", kind: "number", min: 0.01, max: 100, step: 0.05 },
  { name: "frequency_penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "presence_penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "bad_words", kind: "lines", hint: "one per line; never written" },
  { name: "logit_bias", kind: "json", hint: 'token id to number: {"42": -5}' },
];
const FORMAT = [
  {
    name: "response_format",
    kind: "json",
    hint: '{"type": "json_object"}, or a json_schema',
  },
  { name: "json_schema", kind: "json", hint: "a schema, or true for any JSON" },
  { name: "regex", kind: "text", hint: "the whole text matches" },
  { name: "choice", kind: "lines", hint: "one per line; the text is one of them" },
];
const REQUEST = [
  { name: "stream", kind: "flag", initial: true, hint: "show the text while it is generated" },
  { name: "priority", kind: "integer", min: 1, max: 9, hint: "1 is first, 5 is usual" },
  { name: "timeout_ms", kind: "integer", min: 1, hint: "deadline of the whole request" },
];
const PROMPT_TOKENS = { name: "prompt_logprobs", kind: "integer", min: 0, max: 20, hint: "not with a stream" };
const TOKEN_IDS = { name: "return_tokens_as_token_ids", kind: "flag", hint: "write tokens as token_id:…" };

/** Options of /v1/chat/completions in groups: `[title, rows]`. */
export const CHAT_OPTIONS = [
  ["Length and end", LENGTH],
  ["Sampling", SAMPLING],
  ["Log probabilities", [
    { name: "logprobs", kind: "flag", initial: true, hint: "of each token; point at a token to see them" },
    { name: "top_logprobs", kind: "integer", min: 0, max: 20, initial: "5", hint: "alternatives of each token" },
    PROMPT_TOKENS,
    TOKEN_IDS,
  ]],
  ["Penalties and words", PENALTIES],
  ["Format", FORMAT],
  ["Tools", [
    { name: "tools", kind: "json", hint: "functions as OpenAI describes them" },
    { name: "tool_choice", kind: "json", hint: '"auto", "none", "required", or a function' },
    { name: "parallel_tool_calls", kind: "choice", values: ["true", "false"] },
    { name: "reasoning_effort", kind: "choice", values: ["none", "minimal", "low", "medium", "high", "xhigh", "max"] },
    { name: "chat_template_kwargs", kind: "json", hint: 'variables of the template: {"enable_thinking": false}' },
  ]],
  ["Last message", [
    { name: "continue_final_message", kind: "flag", hint: "continue the last message, one of the assistant" },
    { name: "add_generation_prompt", kind: "choice", values: ["true", "false"] },
  ]],
  ["Request", REQUEST],
];

/** Options of /v1/completions. */
export const COMPLETION_OPTIONS = [
  ["Length and end", LENGTH],
  ["Sampling", SAMPLING],
  ["Log probabilities", [
    { name: "logprobs", kind: "integer", min: 0, max: 5, initial: "5", hint: "alternatives of each token; point at one to see them" },
    PROMPT_TOKENS,
    TOKEN_IDS,
  ]],
  ["Prompt", [
    { name: "echo", kind: "flag", hint: "begin the text with the prompt" },
    { name: "suffix", kind: "text", hint: "the text after the gap to fill" },
    { name: "add_special_tokens", kind: "choice", values: ["true", "false"], hint: "of the tokenizer, before the prompt" },
  ]],
  ["Penalties and words", PENALTIES],
  ["Format", FORMAT],
  ["Request", REQUEST],
];

/** Return the options of a model: its default maximum of tokens leaves half of the context to the prompt. */
export function optionsOf(groups, contextTokens) {
  const initial = String(Math.min(DEFAULT_TOKENS, contextTokens === null ? Infinity : Math.max(1, Math.floor(contextTokens / 2))));
  const change = (row) => (row.name === "max_tokens" ? { ...row, initial } : row);
  return groups.map(([title, rows]) => [title, rows.map(change)]);
}

const rowsOf = (groups) => groups.flatMap(([, rows]) => rows);

/** Return the first values of a form: texts and flags by name. */
export function initialValues(groups) {
  return Object.fromEntries(rowsOf(groups).map((row) => [row.name, row.initial ?? (row.kind === "flag" ? false : "")]));
}

/** Return `{members, faults}`: what a request has for the values of a form, and by name why a value is none. */
export function readOptions(groups, values) {
  const members = {};
  const faults = {};
  for (const row of rowsOf(groups)) {
    try {
      const value = readValue(row, values[row.name]);
      if (value !== undefined) members[row.name] = value;
    } catch (error) {
      faults[row.name] = error.message;
    }
  }
  if (members.top_logprobs !== undefined && !members.logprobs) delete members.top_logprobs;
  return { members, faults };
}

/** Return the tokens of a model's context as a member of a request, if its maximum of tokens is the default. */
export function limitOf(groups, values, contextTokens) {
  return "max_tokens" in changedValues(groups, values) ? {} : { contextTokens };
}

/** A stream tells its tokens only when asked. */
export const usageOf = (members) => (members.stream ? { stream_options: { include_usage: true } } : {});

/** Return the values that differ from the first ones. */
export function changedValues(groups, values) {
  const initial = initialValues(groups);
  return Object.fromEntries(Object.keys(initial).filter((name) => values[name] !== initial[name]).map((name) => [name, values[name]]));
}

/** Return the values of a form with these changes. Changes of other names or types are left out. */
export function valuesOf(groups, changes = {}) {
  const initial = initialValues(groups);
  const known = Object.entries(changes).filter(([name, value]) => Object.hasOwn(initial, name) && typeof value === typeof initial[name]);
  return { ...initial, ...Object.fromEntries(known) };
}

function readValue(row, value) {
  if (row.kind === "flag") return value || undefined;
  if (value.trim() === "") return undefined;
  switch (row.kind) {
    case "number":
    case "integer": {
      const number = Number(value);
      if (!Number.isFinite(number) || (row.kind === "integer" && !Number.isInteger(number))) {
        throw new Error(row.kind === "integer" ? "a whole number" : "a number");
      }
      return number;
    }
    case "lines":
      return linesOf(value);
    case "integers":
      return value.split(/[\s,]+/).filter(Boolean).map((part) => {
        if (!/^\d+$/.test(part)) throw new Error("ids with commas");
        return Number(part);
      });
    case "json":
      try {
        return JSON.parse(value);
      } catch (error) {
        throw new Error(`JSON: ${error.message}`);
      }
    case "choice":
      return value === "true" ? true : value === "false" ? false : value;
    default:
      return value;
  }
}
