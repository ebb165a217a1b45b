"""The view of the manual: its pages, links, headings and search; text of a page never becomes markup."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.server import RunningServer
from tests.manual.reference import DOCS
from tests.web.browsers import SharedBrowser
from tests.web.tabs import Open

SESSION = """# Title

```console
$ first \\
    --option
output
$ second
```
"""
HOSTILE = """# Title

A <script>window.changed = 1</script> and <img src=x onerror="window.changed = 2"> here.

<div onclick="window.changed = 3">a block</div>

[a link](javascript:window.changed=4) and &lt;b&gt; and `a &lt; b`.
"""
READ_ALL = """const { PAGES, readPage, targetOf } = m;
const parts = (token) => [token.tokens, token.items, token.header, ...(token.rows ?? [])].filter(Array.isArray);
const hrefs = (tokens) => tokens.flatMap((token) => [
  ...(token.type === "link" ? [token.href] : []),
  ...parts(token).flatMap(hrefs),
]);
return Promise.all([...PAGES.keys()].map(async (page) => {
  const { tokens, headings } = await readPage(page);
  return { page, ids: headings.map(({ id }) => id), links: hrefs(tokens).map((href) => [href, targetOf(href, page)]) };
}));"""


@pytest.fixture(scope="module")
def pages(browser: SharedBrowser, small_site: RunningServer) -> Iterator[list[dict[str, Any]]]:
    """All pages as the view reads them: their headings' ids, and each link with its target."""
    tab = browser.open_tab(small_site.url)
    base = tab.page.locator("script[type=module]").get_attribute("src")
    assert base is not None
    module = base.replace("main.js", "lib/manual.js")
    yield tab.page.evaluate(
        f"async () => {{ const m = await import(new URL('{module}', document.baseURI)); {READ_ALL} }}"
    )
    browser.close_tab(tab)


def test_manual_links_lead_to_pages_and_headings(pages: list[dict[str, Any]]) -> None:
    ids = {each["page"]: set(each["ids"]) for each in pages}
    count = 0
    for each in pages:
        text = re.sub(r"```.*?```", "", (DOCS / f"{each['page']}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
        written = re.findall(r"(?<!!)\[[^\]]*\]\([^)]+\)", text)
        assert len(each["links"]) >= len(re.findall(r"\.md[#)]", "".join(written))), each["page"]
        for href, target in each["links"]:
            assert target is not None, (each["page"], href)
            if "address" not in target:
                assert target["heading"] is None or target["heading"] in ids[target["page"]], (each["page"], href)
                count += target["heading"] is not None
    assert count > 100


@pytest.mark.extended
def test_heading_ids_are_those_of_site(pages: list[dict[str, Any]]) -> None:
    markdown = pytest.importorskip("markdown", reason="needs the extra docs")
    for each in pages:
        converter = markdown.Markdown(extensions=["toc", "tables", "attr_list", "pymdownx.superfences"])
        converter.convert((DOCS / f"{each['page']}.md").read_text(encoding="utf-8"))
        assert each["ids"] == list(ids_of(converter.toc_tokens)), each["page"]


def ids_of(tokens: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the ids of headings in the order of the page."""
    for token in tokens:
        yield token["id"]
        yield from ids_of(token["children"])


def test_manual_is_read_by_links(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url)
    page = tab.page
    page.get_by_role("link", name="Manual", exact=True).click()
    expect(tab.heading("Roundhouse")).to_be_visible()
    contents = page.get_by_role("navigation", name="Pages of the manual")
    expect(contents.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
    contents.get_by_role("link", name="The page", exact=True).click()
    expect(tab.heading("The page")).to_be_visible()
    page.get_by_role("article").get_by_role("link", name="Long work").click()
    expect(page).to_have_url(re.compile(r"#/manual/native-api\?heading=progress$"))
    heading = page.get_by_role("heading", name="Progress", exact=True)
    expect(heading).to_be_focused()
    expect(heading).to_be_in_viewport()
    assert page.locator("pre[data-language=sh] + button").first.inner_text() == "Copy"


def test_manual_search_finds_headings(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/manual")
    tab.page.get_by_label("Search the headings of the manual").fill("run collections")
    contents = tab.page.get_by_role("navigation", name="Pages of the manual")
    contents.get_by_role("link", name="At run time Search", exact=True).click()
    expect(tab.heading("Search")).to_be_visible()
    expect(tab.page.get_by_role("heading", name="At run time", exact=True)).to_be_focused()
    tab.page.get_by_label("Search the headings of the manual").fill("zzz")
    expect(contents).to_contain_text("No heading has these words")


def test_manual_text_never_becomes_markup(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/nothing", is_fresh=True)
    tab.page.route("**/manual/index.md", lambda route: route.fulfill(body=HOSTILE))
    tab.show("#/manual")
    article = tab.page.get_by_role("article")
    expect(article).to_contain_text("A <script>window.changed = 1</script> and <img src=x onerror=")
    expect(article).to_contain_text('<div onclick="window.changed = 3">a block</div>')
    expect(article).to_contain_text("a link and <b> and a &lt; b.")
    expect(article.locator("script, img, div[onclick], a, b")).to_have_count(0)
    assert tab.page.evaluate("window.changed") is None


def test_session_is_copied_without_prompts(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/nothing", is_fresh=True)
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.page.route("**/manual/index.md", lambda route: route.fulfill(body=SESSION))
    tab.show("#/manual")
    tab.page.get_by_role("button", name="Copy").click()
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    assert tab.page.evaluate("navigator.clipboard.readText()") == "first \\\n    --option\nsecond"


def test_missing_page_of_manual_leads_back(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/manual/nothing", is_fresh=True)
    tab.page.get_by_role("link", name="Go to the first page").click()
    expect(tab.heading("Roundhouse")).to_be_visible()
    tab.allowed = ("404",)
    tab.page.route("**/manual/security.md", lambda route: route.fulfill(status=404))
    tab.show("#/manual/security")
    expect(tab.page.get_by_role("alert")).to_contain_text("no page security of the manual")
