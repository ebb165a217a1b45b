// Markdown as a tree. Nothing here makes HTML: components/markdown.js draws the tree, so that no text becomes markup.
import { lexer } from "../vendor/marked.js";

/** A box of the manual: its kind, its title, and lines indented by four spaces. Markdown has none: it becomes a quote. */
const BOX = /^!!! (\w+)(?: "([^"\n]*)")?\n((?:(?: {4}.*)?(?:\n|$))+)/gm;
/** Attributes of a picture. */
const ATTRIBUTES = /(!\[[^\]\n]*\]\([^)\n]*\))\{[^}\n]*\}/g;
const COMMENT = /^\s*<!--[^]*?-->\s*$/;

/** Return {tokens, headings} of a text. `headings`: [{depth, text, id}], with the ids that the manual's links use. */
export function parseMarkdown(text) {
  const known = text.replaceAll(BOX, quoted).replaceAll(ATTRIBUTES, "$1");
  const tokens = lexer(known).filter((token) => token.type !== "html" || !COMMENT.test(token.raw));
  const used = new Set();
  const headings = [];
  for (const token of tokens) {
    if (token.type !== "heading") continue;
    const plain = plainText(token.tokens);
    token.id = uniqueId(headingId(plain), used);
    headings.push({ depth: token.depth, text: plain, id: token.id });
  }
  return { tokens, headings };
}

/** Return the id of a heading, as the builder of the manual's site makes it: `a-b` of "A `b`?". */
export function headingId(text) {
  const ascii = text.normalize("NFKD").replace(/[^\x00-\x7f]/g, "");
  return ascii.replace(/[^\w\s-]/g, "").trim().toLowerCase().replace(/[-\s]+/g, "-");
}

/** Return the text of inline tokens, without their form. */
export function plainText(tokens) {
  return tokens.map((token) => (token.tokens ? plainText(token.tokens) : unescaped(token))).join("");
}

/** Characters that Markdown names, in texts outside of code. */
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** Return the text of an inline token without parts. */
export function unescaped(token) {
  if (token.type !== "text") return token.text ?? token.raw;
  return token.text.replace(/&(\w+);/g, (whole, name) => ENTITIES[name] ?? whole);
}

function quoted(_, kind, title, body) {
  const lines = [`**${title ?? kind.charAt(0).toUpperCase() + kind.slice(1)}**`, "", ...body.trimEnd().split("\n")];
  return `${lines.map((line) => `> ${line.replace(/^ {4}/, "")}`).join("\n")}\n\n`;
}

function uniqueId(id, used) {
  let free = id;
  for (let number = 1; used.has(free); number += 1) free = `${id}_${number}`;
  used.add(free);
  return free;
}
