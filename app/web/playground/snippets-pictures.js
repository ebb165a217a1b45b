// Pictures in requests as code: the code reads them from files beside it, by their names.
import { Code, literal, shellQuoted } from "./literals.js";

/** No text of JSON has this character. */
const MARK = "\0";

const WORDS = {
  json: (name, type) => `"data:${type};base64,${MARK}${name}${MARK}"`,
  python: (name, type) => `picture(${JSON.stringify(name)}, "${type}")`,
  javascript: (name, type) => `await picture(${JSON.stringify(name)}, "${type}")`,
};

/** Lines that define `picture` in each language. */
export const PYTHON_IMPORTS = ["from base64 import b64encode", "from pathlib import Path"];
export const PYTHON_LINES = [
  "",
  "def picture(name, type):",
  '    return f"data:{type};base64,{b64encode(Path(name).read_bytes()).decode()}"',
  "",
  "",
];
export const JAVASCRIPT_LINES = [
  'import { readFile } from "node:fs/promises";',
  "",
  'const picture = async (name, type) => `data:${type};base64,${await readFile(name, "base64")}`;',
];

/** Return the pictures `[{name, url}]` that are in the messages of a request, each once. */
export function picturesOf({ body, pictures = [] }) {
  const urls = new Set((body.messages ?? []).flatMap(partsOf).map((part) => part.image_url?.url));
  return [...new Map(pictures.map((picture) => [picture.url, picture])).values()].filter(({ url }) => urls.has(url));
}

/** Return the body of a request with code in place of its pictures. `pictures`: of picturesOf. */
export function withCode(body, pictures, language) {
  if (pictures.length === 0) return body;
  const names = new Map(pictures.map(({ name, url }) => [url, name]));
  const codeOf = (url) => new Code(WORDS[language](names.get(url), typeOf(url)));
  const coded = (part) => (names.has(part.image_url?.url) ? { ...part, image_url: { url: codeOf(part.image_url.url) } } : part);
  const messages = body.messages.map((message) => (Array.isArray(message.content) ? { ...message, content: message.content.map(coded) } : message));
  return { ...body, messages };
}

/** Return the end of a command of curl: the body from a here-document, in which the shell puts the files. */
export function hereDocument(body) {
  const pieces = literal(body, "json", 0).split(MARK);
  // Between the marks are names; the shell would read these characters of the other pieces.
  const written = pieces.map((piece, at) => (at % 2 ? `$(base64 < ${shellQuoted(piece)} | tr -d '\\n')` : piece.replace(/[\\$`]/g, "\\$&")));
  return `-d @- <<JSON\n${written.join("")}\nJSON`;
}

/** Return a picture as a Blob. */
export function blobOf({ url }) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: typeOf(url) });
}

const partsOf = ({ content }) => (Array.isArray(content) ? content : []);
const typeOf = (url) => url.slice("data:".length, url.indexOf(";"));
