// A form with files, as it is sent and as commands to paste. The files lie beside the snippet, by their names.
import { literal, shellQuoted } from "./literals.js";

/** Return the body of a request whose `form` is `{field, files, options}`: files of one field, and short texts. */
export function formData({ field, files, options }) {
  const body = new FormData();
  for (const [name, value] of Object.entries(options)) body.append(name, String(value));
  for (const file of files) body.append(field, file, file.name);
  return body;
}

/** Return the snippets of such a request; see snippets.js. */
export function formSnippets({ url, hasKey, form }) {
  const call = { url, hasKey, field: form.field, names: form.files.map((file) => file.name), options: form.options };
  return [
    { id: "curl", label: "curl", text: curl(call) },
    { id: "httpx", label: "Python (httpx)", text: httpx(call) },
    { id: "javascript", label: "JavaScript", text: javascript(call) },
  ];
}

function curl({ url, hasKey, field, names, options }) {
  // In the value of -F, quotes and backslashes of a name are escaped.
  const quoted = (name) => `@"${name.replace(/["\\]/g, "\\$&")}"`;
  return [
    `curl -s ${shellQuoted(url)}`,
    ...(hasKey ? ['-H "authorization: Bearer $ROUNDHOUSE_KEY"'] : []),
    ...Object.entries(options).map(([name, value]) => `-F ${shellQuoted(`${name}=${value}`)}`),
    ...names.map((name) => `-F ${shellQuoted(`${field}=${quoted(name)}`)}`),
  ].join(" \\\n  ");
}

function httpx({ url, hasKey, field, names, options }) {
  const lines = [...(hasKey ? ["import os"] : []), "from pathlib import Path", "", "import httpx", "", `names = ${literal(names, "python")}`];
  lines.push(`files = [(${JSON.stringify(field)}, (name, Path(name).read_bytes())) for name in names]`);
  const members = Object.entries(options).map(([name, value]) => [name, String(value)]);
  if (hasKey) lines.push('headers = {"authorization": f"Bearer {os.environ[\'ROUNDHOUSE_KEY\']}"}');
  const data = members.length ? `, data=${literal(Object.fromEntries(members), "python")}` : "";
  lines.push(
    `answer = httpx.post(${JSON.stringify(url)}, files=files${data}${hasKey ? ", headers=headers" : ""}, timeout=300)`,
    "if answer.is_error:",
    "    raise SystemExit(answer.text)",
    "print(answer.json())",
  );
  return lines.join("\n");
}

function javascript({ url, hasKey, field, names, options }) {
  const lines = ['import { openAsBlob } from "node:fs";', "", "const body = new FormData();"];
  for (const [name, value] of Object.entries(options)) lines.push(`body.append(${JSON.stringify(name)}, ${JSON.stringify(String(value))});`);
  lines.push(
    `for (const name of ${literal(names, "javascript")}) body.append(${JSON.stringify(field)}, await openAsBlob(name), name);`,
    `const response = await fetch(${JSON.stringify(url)}, {`,
    '  method: "POST",',
    ...(hasKey ? ["  headers: { authorization: `Bearer ${process.env.ROUNDHOUSE_KEY}` },"] : []),
    "  body,",
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    "console.log(await response.json());",
  );
  return lines.join("\n");
}
