// Requests of the OpenAI API with its own client for Python.
import { literal } from "./literals.js";
import { PYTHON_IMPORTS, PYTHON_LINES } from "./snippets-pictures.js";

// Parameters of the methods of the client; other fields go into extra_body.
const SHARED = ["model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
  "stream", "stream_options", "temperature", "top_p"];
export const METHODS = {
  "v1/chat/completions": {
    method: "chat.completions",
    parameters: [...SHARED, "messages", "parallel_tool_calls", "reasoning_effort", "response_format", "tool_choice", "tools",
      "top_logprobs"],
    print: "print(answer.choices[0].message)",
    printChunk: 'print(chunk.choices[0].delta.content or "", end="", flush=True)',
  },
  "v1/completions": {
    method: "completions",
    parameters: [...SHARED, "prompt", "echo", "suffix"],
    print: "print(answer.choices[0].text)",
    printChunk: 'print(chunk.choices[0].text, end="", flush=True)',
  },
  "v1/embeddings": {
    method: "embeddings",
    parameters: ["model", "input", "dimensions", "encoding_format"],
    print: "for each in answer.data:\n    print(each.index, each.embedding[:4], \"…\")",
  },
};

/** Return the snippet of a request to a route that the client has, else null. */
export function openAiSnippet({ path, body, base, hasKey, isLong, hasPictures }) {
  const known = METHODS[path];
  if (known === undefined || isLong) return null;
  const members = Object.entries(body);
  const extra = Object.fromEntries(members.filter(([name]) => !known.parameters.includes(name)));
  const words = members
    .filter(([name]) => known.parameters.includes(name))
    .map(([name, value]) => `    ${name}=${literal(value, "python", 4)},`);
  if (Object.keys(extra).length > 0) words.push(`    extra_body=${literal(extra, "python", 4)},`);
  const key = hasKey ? 'os.environ["ROUNDHOUSE_KEY"]' : '"none"';
  const imports = [...(hasKey ? ["import os"] : []), ...(hasPictures ? PYTHON_IMPORTS : [])];
  const lines = [
    ...imports,
    ...(imports.length ? [""] : []),
    "from openai import OpenAI",
    "",
    ...(hasPictures ? PYTHON_LINES : []),
    `client = OpenAI(base_url=${JSON.stringify(`${base}/v1`)}, api_key=${key})`,
    `answer = client.${known.method}.create(`,
    ...words,
    ")",
    ...(body.stream ? ["for chunk in answer:", "    if chunk.choices:", `        ${known.printChunk}`] : [known.print]),
  ];
  return { id: "openai", label: "Python (openai)", text: lines.join("\n") };
}
