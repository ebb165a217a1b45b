"""One tab of the browser with the page, and what tests ask of it."""

import os
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Error, Locator, Page, expect

WAIT_S = 60.0
"""How long tests wait for a condition. Only an error takes as long, on any machine."""

Scheme = Literal["dark", "light"]

SERIOUS = ("serious", "critical")

LONG_WITHOUT_SERVER = """() => {
  const real = performance.now.bind(performance);
  performance.now = () => real() + 5000;
}"""
"""Let the page's clock jump, so that its next attempt to reach a lost server is a late one."""

expect.set_options(timeout=WAIT_S * 1000)


class Tab:
    """A page of the browser, without storage of other tests.

    `errors`: what the page wrote to the console as an error, and its uncaught exceptions.
    """

    def __init__(self, page: Page, url: str, width: int, scheme: str, key: str | None = None) -> None:
        """`url`: of the server, with a hash of the view. `key`: in the session storage before the page starts."""
        dark: Scheme = "dark" if scheme == "dark" else "light"
        self.page = page
        page.set_default_timeout(WAIT_S * 1000)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=dark)
        if key is not None:
            page.add_init_script(f"sessionStorage.setItem('roundhouse.key', '{key}')")
        self.errors: list[str] = []
        self.allowed: tuple[str, ...] = ()
        # Until it is loaded, the page of the last test may still look for its server.
        address = urlsplit(url)
        self._origin = f"{address.scheme}://{address.netloc}" if address.netloc else ""
        page.on("console", self._note)
        page.on("pageerror", self._note_exception)
        page.goto(url)

    def empty(self) -> None:
        """Remove listeners, routes and storage, so that another test can use the page."""
        # Its answer comes after all events of the page.
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.remove_listener("console", self._note)
        self.page.remove_listener("pageerror", self._note_exception)
        self.page.unroute_all(behavior="ignoreErrors")

    def check(self) -> None:
        """Check that the page had no errors, except those with a text of `allowed`."""
        unexpected = [error for error in self.errors if not any(text in error for text in self.allowed)]
        assert not unexpected, unexpected

    def show(self, view: str) -> None:
        """Go to a view by its hash, as `#/models/digits`."""
        self.page.evaluate("hash => { location.hash = hash }", view)

    def heading(self, name: str) -> Locator:
        """Return the heading of a view."""
        return self.page.get_by_role("heading", name=name, level=1, exact=True)

    def phase(self) -> Locator:
        """Return the element that shows the state of the connection; its `data-phase` names it."""
        return self.page.locator(".connection")

    def serious_findings(self) -> list[dict[str, Any]]:
        """Return the findings of axe-core on the page as it is that are serious or critical."""
        if not self.page.evaluate("'axe' in window"):  # its script is large
            self.page.evaluate(Axe().axe_script)
        results: dict[str, Any] = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [
            {"id": each["id"], "help": each["help"], "nodes": [node["html"] for node in each["nodes"]]}
            for each in results["violations"]
            if each["impact"] in SERIOUS
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return width

    def _note(self, message: ConsoleMessage) -> None:
        address = message.location.get("url", "")
        is_of_last_page = address.startswith("http") and not address.startswith(self._origin)
        if message.type == "error" and not is_of_last_page:
            self.errors.append(f"{message.text} {address}")

    def _note_exception(self, error: Error) -> None:
        self.errors.append(str(error))


def chromium_options() -> list[str]:
    """Return the arguments of the browser; its sandbox does not start for root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


Open = Callable[..., Tab]
"""open_tab(url, width=1280, scheme="light", key=None, is_fresh=False): see `Tab` and `SharedBrowser.open_tab`."""
