"""The browser of these tests, the server that they share, and the keys of its callers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.configs import DIGITS, EMBEDDED
from tests.e2e.server import RunningServer, serving
from tests.support.chromium import CHROMIUM
from tests.support.models import onnx_costly_graphs, onnx_graphs
from tests.web.playgrounds import playground_entries
from tests.web.tabs import Open, Tab, chromium_options


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that opens the page."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.web)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a browser without a window. Of a module: its event loop would disturb other tests of this process."""
    if CHROMIUM is None:
        message = "chromium: expected a browser in PATH, got none; install the package chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=chromium_options())
        yield browser
        browser.close()


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Open]:
    """Open tabs, each with a session of its own, and close them. A tab with an error in its console fails the test."""
    tabs: list[Tab] = []

    def open_one(url: str, width: int = 1280, scheme: str = "light", key: str | None = None) -> Tab:
        tabs.append(Tab(browser, url, width, scheme, key))
        return tabs[-1]

    yield open_one
    for tab in tabs:
        tab.close()


@pytest.fixture(scope="session")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that leave it as it is, and need no text models: digits, and a model with two versions."""
    folder = tmp_path_factory.mktemp("small")
    with serving(folder, DIGITS + versioned_entry(folder, "all")) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that leave it as it is: the embedded models, and one with two versions."""
    folder = tmp_path_factory.mktemp("site")
    entries = EMBEDDED.replace("path =", "downloadable = true\npath =") + versioned_entry(folder, "all")
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="session")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a model of every task, for the tests of the playground."""
    folder = tmp_path_factory.mktemp("playground")
    with serving(folder, playground_entries(folder)) as running:
        yield running.wait_ready()
        running.check_log()


def versioned_entry(folder: Path, policy: str, name: str = "two-versions") -> str:
    """Save a model with the versions 1 and 2, which multiply by their number; return its entry. `policy`: of it."""
    for version in (1, 2):
        place = folder / name / str(version)
        place.mkdir(parents=True)
        onnx_graphs.save(onnx_costly_graphs.weighted(version, 0.1), place)
    return f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}"\nversion_policy = "{policy}"\n'
