"""The browser that the files of one process share, and its idle pages."""

from itertools import count
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.support.chromium import CHROMIUM
from tests.web.tabs import Tab, chromium_options

FOLDER = Path(__file__).parent


class SharedBrowser:
    """A browser that starts when it is needed, and pages that tests use one after another.

    A page of a new context takes four times the CPU time: a process, no cache, and 40 modules to compile.
    """

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._context: BrowserContext | None = None
        self._idle: list[Page] = []
        self._numbers = count(1)

    def get(self) -> Browser:
        """Return the browser; start it if it does not run, or has crashed."""
        if self._browser is not None and not self._browser.is_connected():
            self.close()
        if self._browser is None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=CHROMIUM, args=chromium_options())
            self._context = self._browser.new_context()
        return self._browser

    def open_tab(
        self, url: str, width: int = 1280, scheme: str = "light", key: str | None = None, is_fresh: bool = False
    ) -> Tab:
        """Load the page from a URL with a hash. `key` and `is_fresh`: in a context of its own."""
        browser = self.get()
        if key is not None or is_fresh:
            return Tab(browser.new_context().new_page(), url, width, scheme, key)
        assert self._context is not None
        if not self._idle:
            return Tab(self._context.new_page(), url, width, scheme)
        page = self._idle.pop()
        # Pages behind another one are drawn once a second.
        page.bring_to_front()
        # The pointer of the last test would open tooltips.
        page.mouse.move(0, 0)
        # With another query: a change of the hash alone would not load the page.
        address, _, view = url.partition("#")
        return Tab(page, f"{address.rstrip('/')}/?tab={next(self._numbers)}#{view}", width, scheme)

    def close_tab(self, tab: Tab) -> None:
        """Check that the tab had no errors. Keep its page for the next test, without routes, listeners and storage."""
        if tab.page.context is not self._context:
            tab.page.context.close()
        else:
            tab.empty()
            self._idle.append(tab.page)
        tab.check()

    def close(self) -> None:
        """End the browser if it runs."""
        browser, playwright = self._browser, self._playwright
        self._playwright = self._browser = self._context = None
        self._idle.clear()
        try:
            if browser is not None:
                browser.close()
        finally:
            if playwright is not None:
                playwright.stop()
