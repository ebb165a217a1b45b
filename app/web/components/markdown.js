// Draws the tree of a Markdown text. Raw HTML in it is shown as text.
import { html } from "../lib/html.js";
import { plainText, unescaped } from "../lib/markdown.js";
import { CopyButton } from "../playground/copy-button.js";
import { Scroll } from "./scroll.js";

/** `tokens`: of `parseMarkdown`. `Link`: draws {href, children}. `idOf(id)`: the id of a heading in the document. */
export function Markdown({ tokens, Link, idOf }) {
  const draw = { Link, idOf };
  return html`<div class="markdown">${blocks(tokens, draw)}</div>`;
}

function blocks(tokens, draw) {
  return tokens.map((token, index) => html`<${Block} key=${index} token=${token} draw=${draw} />`);
}

const BLOCKS = {
  space: () => null,
  def: () => null,
  hr: () => html`<hr />`,
  heading: ({ depth, id, tokens }, draw) => html`<${`h${depth}`} id=${draw.idOf(id)} tabindex="-1">${inline(tokens, draw)}<//>`,
  paragraph: ({ tokens }, draw) => html`<p>${inline(tokens, draw)}</p>`,
  // Text of an item whose list has no empty lines.
  text: ({ tokens, ...token }, draw) => (tokens ? inline(tokens, draw) : unescaped(token)),
  blockquote: ({ tokens }, draw) => html`<blockquote>${blocks(tokens, draw)}</blockquote>`,
  list: ({ ordered, start, items }, draw) => html`<${ordered ? "ol" : "ul"} start=${ordered && start > 1 ? start : null}>
    ${items.map((item, index) => html`<li key=${index}>${blocks(item.tokens, draw)}</li>`)}<//>`,
  code: ({ text, lang }) => html`<div class="code-block">
    <pre tabindex="0" data-language=${lang || null}><code>${text}</code></pre>
    <${CopyButton} text=${lang === "console" ? commandsOf(text) : text} className="plain" /></div>`,
  table: ({ header, rows }, draw) => html`<${Scroll} label=${`Table of ${plainText(header[0].tokens) || "values"}`}><table>
    <thead><tr>${header.map((cell, index) => html`<th key=${index} scope="col">${inline(cell.tokens, draw)}</th>`)}</tr></thead>
    <tbody>${rows.map((row, number) => html`<tr key=${number}>
      ${row.map((cell, index) => html`<td key=${index}>${inline(cell.tokens, draw)}</td>`)}</tr>`)}</tbody></table><//>`,
};

/** Return the commands of a session, without prompts and output; the whole text if it has none. */
function commandsOf(session) {
  const commands = [];
  let goesOn = false;
  for (const line of session.split("\n")) {
    if (goesOn || line.startsWith("$ ")) commands.push(goesOn ? line : line.slice(2));
    goesOn = (goesOn || line.startsWith("$ ")) && line.endsWith("\\");
  }
  return commands.length ? commands.join("\n") : session;
}

function Block({ token, draw }) {
  return BLOCKS[token.type] ? BLOCKS[token.type](token, draw) : html`<p>${token.raw}</p>`;
}

const INLINE = {
  strong: (token, draw) => html`<strong>${inline(token.tokens, draw)}</strong>`,
  em: (token, draw) => html`<em>${inline(token.tokens, draw)}</em>`,
  del: (token, draw) => html`<del>${inline(token.tokens, draw)}</del>`,
  codespan: (token) => html`<code>${token.text}</code>`,
  br: () => html`<br />`,
  link: (token, draw) => html`<${draw.Link} href=${token.href}>${inline(token.tokens, draw)}<//>`,
  // The pictures of the manual show this page itself; they are not in the installation.
  image: (token) => html`<span class="detail">[${token.text}]</span>`,
};

function inline(tokens, draw) {
  return tokens.map((token) => INLINE[token.type]?.(token, draw) ?? unescaped(token));
}
