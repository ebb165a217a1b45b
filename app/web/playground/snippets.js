// A request as commands to paste. The key is never in them: they read it from the environment.
import { literal, shellQuoted } from "./literals.js";
import { formSnippets } from "./snippets-form.js";
import { openAiSnippet } from "./snippets-openai.js";
import { JAVASCRIPT_LINES, PYTHON_IMPORTS, PYTHON_LINES, hereDocument, picturesOf, withCode } from "./snippets-pictures.js";
import { tritonSnippet } from "./snippets-triton.js";

/** Longer bodies are read from a file beside the snippet. */
const MAX_BODY_CHARACTERS = 24_000;
export const BODY_FILE = "request.json";

/**
 * Return `[{id, label, text}]` for a request `{path, body, pictures, tensors}`, or `{path, form}` of snippets-form.js.
 *
 * `base`: address of the server without a slash at its end. `hasKey`: whether requests need a key. `tensors`: inputs
 * and outputs of a tensor request, for Triton's client; see snippets-triton.js. `pictures`: `[{name, url}]`, of which
 * some are in its messages.
 */
export function snippetsOf(request, base, hasKey) {
  if (request.form) return formSnippets({ ...request, url: `${base}/${request.path}`, hasKey });
  const pictures = picturesOf(request);
  const isLong = isLongBody(withCode(request.body, pictures, "json"));
  // A file beside the snippet has the pictures, too.
  const shared = { ...request, url: `${base}/${request.path}`, base, hasKey, isLong, hasPictures: pictures.length > 0 && !isLong };
  const call = (language) => ({ ...shared, body: isLong ? request.body : withCode(request.body, pictures, language) });
  return [
    { id: "curl", label: "curl", text: curl(call("json")) },
    openAiSnippet(call("python")),
    tritonSnippet(shared),
    { id: "httpx", label: "Python (httpx)", text: httpx(call("python")) },
    { id: "javascript", label: "JavaScript", text: javascript(call("javascript")) },
  ].filter(Boolean);
}

const isLongBody = (body) => literal(body, "json").length > MAX_BODY_CHARACTERS;

/** Return the body as it is sent. */
export const bodyText = (request) => literal(request.body, "json");

function curl({ url, hasKey, isLong, hasPictures, body }) {
  const data = hasPictures ? hereDocument(body) : `-d ${shellQuoted(literal(body, "json", 2))}`;
  return [
    `curl -s${body.stream ? "N" : ""} ${shellQuoted(url)}`,
    "-H 'content-type: application/json'",
    ...(hasKey ? ['-H "authorization: Bearer $ROUNDHOUSE_KEY"'] : []),
    isLong ? `-d @${BODY_FILE}` : data,
  ].join(" \\\n  ");
}

function httpx({ url, hasKey, isLong, hasPictures, body }) {
  const files = isLong ? ["from pathlib import Path"] : hasPictures ? PYTHON_IMPORTS : [];
  const imports = [...(isLong ? ["import json"] : []), ...(hasKey ? ["import os"] : []), ...files];
  const lines = [...imports, ...(imports.length ? [""] : []), "import httpx", "", ...(hasPictures ? PYTHON_LINES : [])];
  lines.push(`body = ${isLong ? `json.loads(Path("${BODY_FILE}").read_text(encoding="utf-8"))` : literal(body, "python")}`);
  if (hasKey) lines.push('headers = {"authorization": f"Bearer {os.environ[\'ROUNDHOUSE_KEY\']}"}');
  const call = `${JSON.stringify(url)}, json=body${hasKey ? ", headers=headers" : ""}, timeout=300`;
  lines.push(
    ...(body.stream
      ? [
        `with httpx.stream("POST", ${call}) as answer:`,
        "    if answer.is_error:",
        "        answer.read()",
        "        raise SystemExit(answer.text)",
        "    for line in answer.iter_lines():",
        "        print(line)",
      ]
      : [`answer = httpx.post(${call})`, "if answer.is_error:", "    raise SystemExit(answer.text)", "print(answer.json())"]),
  );
  return lines.join("\n");
}

function javascript({ url, hasKey, isLong, hasPictures, body }) {
  const headers = { "content-type": "application/json" };
  const key = hasKey ? ", authorization: `Bearer ${process.env.ROUNDHOUSE_KEY}`" : "";
  const lines = isLong ? ['import { readFile } from "node:fs/promises";', ""] : hasPictures ? [...JAVASCRIPT_LINES] : [];
  lines.push(
    `const body = ${isLong ? `await readFile("${BODY_FILE}", "utf8")` : `JSON.stringify(${literal(body, "javascript")})`};`,
    `const response = await fetch(${JSON.stringify(url)}, {`,
    '  method: "POST",',
    `  headers: { "content-type": ${JSON.stringify(headers["content-type"])}${key} },`,
    "  body,",
    "});",
    "if (!response.ok) throw new Error(await response.text());",
  );
  lines.push(
    ...(body.stream
      ? [
        'let rest = "";',
        "for await (const part of response.body.pipeThrough(new TextDecoderStream())) {",
        '  const lines = (rest + part).split("\\n");',
        "  rest = lines.pop();",
        '  for (const line of lines) if (line.startsWith("data: {")) console.log(JSON.parse(line.slice(6)).choices);',
        "}",
      ]
      : ["console.log(await response.json());"]),
  );
  return lines.join("\n");
}
