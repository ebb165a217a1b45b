"""The page of a server whose paths have a prefix."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.configs import EMBEDDED
from tests.e2e.server import serving
from tests.web.tabs import Open


@pytest.mark.extended
def test_page_below_prefix_reads_server(open_tab: Open, tmp_path: Path) -> None:
    with serving(tmp_path, f'{EMBEDDED}\n[server]\nroot_path = "/llm"\n') as server:
        page = open_tab(f"{server.wait_ready().url}/llm", is_fresh=True).page
        expect(page.locator(".connection")).to_have_attribute("data-phase", "connected")
        page.get_by_role("link", name="digits").first.click()
        expect(page).to_have_url(f"{server.url}/llm/#/models/digits")
        expect(page.locator("h1")).to_have_text("digits")
        page.goto(f"{server.url}/llm/docs")
        expect(page.get_by_text("/models/{name}/infer").first).to_be_visible()
        page.goto(page.get_by_role("link", name="The manual").evaluate("link => link.href"))
        expect(page).to_have_url(f"{server.url}/llm/#/manual")
        page.get_by_role("article").get_by_role("link", name="Security").click()
        expect(page.locator("h1")).to_have_text("Security")
        page.goto("about:blank")  # the page would miss its server
        server.check_log()
