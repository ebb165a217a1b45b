// The manual: its pages in order, a search in their headings, and one page.
import { Markdown } from "../components/markdown.js";
import { Busy, Empty, ErrorNotice } from "../components/message.js";
import { html, useEffect, useId, useMemo, useState } from "../lib/html.js";
import { FIRST_PAGE, PAGES, findHeadings, readOutlines, readPage, targetOf } from "../lib/manual.js";
import { SECTIONS } from "../lib/manual-pages.js";
import { link } from "../lib/router.js";

/** `name`: of a page, null for the first one. `query.heading`: the id of a heading in it. */
export function Manual({ name, query }) {
  const page = name ?? FIRST_PAGE;
  return html`<div class="manual">
    <${Contents} page=${page} />
    ${PAGES.has(page)
      ? html`<${Page} key=${page} page=${page} heading=${query.heading ?? null} />`
      : html`<div><h1>Not found</h1><${Empty} title="The manual has no such page.">
          <p><a href=${address(FIRST_PAGE)}>Go to the first page</a></p><//></div>`}
  </div>`;
}

function Contents({ page }) {
  const [query, setQuery] = useState("");
  const [outlines, setOutlines] = useState(null);
  const [error, setError] = useState(null);
  const id = useId();
  const load = () => readOutlines().then(setOutlines, setError);
  const isSearch = query.trim() !== "";
  return html`<div class="panel manual-contents" role="navigation" aria-label="Pages of the manual">
    <label class="visually-hidden" for=${id}>Search the headings of the manual</label>
    <input type="search" id=${id} placeholder="Search the headings" autocomplete="off" value=${query}
      onFocus=${load} onInput=${(event) => { setQuery(event.currentTarget.value); if (!outlines) load(); }} />
    ${!isSearch ? html`<${PageList} page=${page} />`
      : error ? html`<${ErrorNotice} error=${error} title="The search has no headings" />`
      : outlines ? html`<${Found} outlines=${outlines} query=${query} />` : html`<${Busy} />`}
  </div>`;
}

function PageList({ page }) {
  return SECTIONS.map(({ title, pages }) => html`<div key=${title}>
    ${title ? html`<h2>${title}</h2>` : null}
    <ul>${pages.map(([name, label]) => html`<li key=${name}>
      <a href=${address(name)} aria-current=${name === page ? "page" : null}>${label}</a></li>`)}</ul></div>`);
}

function Found({ outlines, query }) {
  const found = useMemo(() => findHeadings(outlines, query), [outlines, query]);
  return html`<p class="detail" role="status">${found.length === 0 ? "No heading has these words" : `Headings: ${found.length}`}</p>
    <ul>${found.map(({ page, heading }) => html`<li key=${`${page}#${heading?.id}`}>
      <a href=${address(page, heading?.id)}>${heading === null ? PAGES.get(page) : html`${heading.text} <span class="detail">${PAGES.get(page)}</span>`}</a></li>`)}</ul>`;
}

function Page({ page, heading }) {
  const [text, setText] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isShown = true;
    readPage(page).then((read) => isShown && setText(read), (failure) => isShown && setError(failure));
    return () => { isShown = false; };
  }, [page]);
  useEffect(() => {
    if (text === null) return;
    const target = heading === null ? null : document.getElementById(idOf(heading));
    if (target === null) scrollTo(0, 0);
    else {
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    }
  }, [text, heading]);
  const Link = useMemo(() => linkOf(page), [page]);
  if (error) return html`<${ErrorNotice} error=${error} title="The page could not be loaded" onRetry=${() => location.reload()} />`;
  return html`<article class="panel manual-page">
    ${text === null ? html`<${Busy} />` : html`<${Markdown} tokens=${text.tokens} Link=${Link} idOf=${idOf} />`}</article>`;
}

/** Return the component that draws the links of a page. */
function linkOf(page) {
  return function Link({ href, children }) {
    const target = targetOf(href, page);
    if (target === null) return html`<span>${children}</span>`;
    if (target.address) return html`<a href=${target.address} target="_blank" rel="noreferrer">${children}</a>`;
    return html`<a href=${address(target.page, target.heading)}>${children}</a>`;
  };
}

function address(page, heading = null) {
  return link("manual", page, { heading });
}

/** Ids of the page itself, such as "content", may be those of headings. */
function idOf(heading) {
  return `heading-${heading}`;
}
