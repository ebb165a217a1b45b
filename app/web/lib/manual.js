// The pages of the manual: Markdown files of this installation, read when they are first shown.
import { parseMarkdown } from "./markdown.js";
import { SECTIONS } from "./manual-pages.js";

export const PAGES = new Map(SECTIONS.flatMap(({ pages }) => pages));
export const FIRST_PAGE = SECTIONS[0].pages[0][0];
const MAX_FOUND = 40;
const read = new Map();

/** Return a promise of a page as {tokens, headings}. `name`: a key of PAGES. Raises Error. */
export function readPage(name) {
  if (!read.has(name)) {
    const page = load(name);
    page.catch(() => read.delete(name));
    read.set(name, page);
  }
  return read.get(name);
}

/** Return a promise of [{page, headings}] of all pages, in the order of the manual. */
export function readOutlines() {
  return Promise.all([...PAGES.keys()].map(async (page) => ({ page, headings: (await readPage(page)).headings })));
}

/** Return the headings with all words of a query: [{page, heading}]. `heading`: null for the title of the page. */
export function findHeadings(outlines, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const { page, headings } of outlines) {
    for (const heading of headings) {
      const title = heading.depth === 1;
      const text = `${page} ${PAGES.get(page)} ${heading.text}`.toLowerCase();
      // A title alone matches by the name of its page; other headings need a word of their own.
      const own = title ? text : heading.text.toLowerCase();
      if (words.every((word) => text.includes(word)) && words.some((word) => own.includes(word))) {
        found.push({ page, heading: title ? null : heading });
      }
    }
  }
  return found.slice(0, MAX_FOUND);
}

/** Return what a link of a page names: {page, heading} in the manual, {address} elsewhere, null for other files. */
export function targetOf(href, page) {
  if (/^https?:\/\//.test(href)) return { address: href };
  const [, name, heading] = /^(?:([\w-]+)\.md)?(?:#([\w-]+))?$/.exec(href) ?? [];
  const target = { page: name ?? page, heading: heading ?? null };
  return href !== "" && heading !== "" && PAGES.has(target.page) && (name || heading) ? target : null;
}

async function load(name) {
  const response = await fetch(new URL(`../manual/${name}.md`, import.meta.url));
  if (!response.ok) throw new Error(`This installation has no page ${name} of the manual, or another version of it`);
  return parseMarkdown(await response.text());
}
