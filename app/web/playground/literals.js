// JSON values as text, in the syntax of JSON, Python and JavaScript.

const WIDTH = 88;

const SYNTAX = {
  json: { true: "true", false: "false", null: "null", name: (text) => JSON.stringify(text) },
  python: { true: "True", false: "False", null: "None", name: (text) => JSON.stringify(text) },
  javascript: {
    true: "true", false: "false", null: "null",
    name: (text) => (/^[A-Za-z_$][\w$]*$/.test(text) ? text : JSON.stringify(text)),
  },
};

/** Words of a program in place of a value. */
export class Code {
  constructor(text) {
    this.text = text;
  }
}

/**
 * Return a value as a literal of `language`: on one line where it fits, else with a line for each member.
 *
 * `indent`: spaces before its first line, for the lines below it. A BigInt is written as an integer.
 */
export function literal(value, language, indent = 0) {
  const syntax = SYNTAX[language];
  if (value === null || value === undefined) return syntax.null;
  if (typeof value === "boolean") return syntax[value];
  if (value instanceof Code) return value.text;
  if (typeof value !== "object") return typeof value === "bigint" ? String(value) : JSON.stringify(value);
  const isList = Array.isArray(value);
  const entries = isList ? value.map((each) => ["", each]) : Object.entries(value).filter(([, each]) => each !== undefined);
  const [open, close] = isList ? "[]" : "{}";
  const prefix = (name) => (isList ? "" : `${syntax.name(name)}: `);
  const inline = `${open}${entries.map(([name, each]) => prefix(name) + literal(each, language)).join(", ")}${close}`;
  if (!inline.includes("\n") && inline.length + indent <= WIDTH) return inline;
  const pad = " ".repeat(indent + 2);
  // Numbers of a tensor fill the lines.
  const lines = isList && value.every((each) => typeof each !== "object" && typeof each !== "string")
    ? filled(value.map((each) => literal(each, language)), WIDTH - indent)
    : entries.map(([name, each]) => prefix(name) + literal(each, language, indent + 2));
  return `${open}\n${lines.map((line) => pad + line).join(",\n")}\n${" ".repeat(indent)}${close}`;
}

/** Return the words in lines of at most `width` characters, with commas between the words of a line. */
function filled(words, width) {
  const lines = [];
  let line = [];
  let length = 0;
  for (const word of words) {
    if (line.length > 0 && length + word.length > width) {
      lines.push(line.join(", "));
      line = [];
      length = 0;
    }
    line.push(word);
    length += word.length + 2;
  }
  lines.push(line.join(", "));
  return lines;
}

/** Return a text in single quotes of a shell. */
export const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
