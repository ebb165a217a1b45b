"""The browser of these tests, the server that they share, and the keys of its callers."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.configs import DIGITS
from tests.e2e.server import RunningServer, serving
from tests.support.chromium import CHROMIUM
from tests.support.closing import closed_after
from tests.support.models import onnx_costly_graphs, onnx_graphs
from tests.web.browsers import FOLDER, SharedBrowser
from tests.web.playgrounds import playground_entries
from tests.web.tabs import Open, Tab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that opens the page."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.web)


VECTORS = '[[collections]]\nname = "vectors"\ndimensions = 3\n'

_BROWSER = SharedBrowser()
# Its event loop would disturb other tests in this process.
pytest_runtest_teardown = closed_after(FOLDER, _BROWSER.close)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """End the browser of a run that was interrupted."""
    _BROWSER.close()


@pytest.fixture(scope="module")
def browser() -> SharedBrowser:
    """The browser of all files; without a window."""
    if CHROMIUM is None:
        message = "chromium: expected a browser in PATH, got none; install the package chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return _BROWSER


@pytest.fixture
def open_tab(browser: SharedBrowser) -> Iterator[Open]:
    """Open tabs, and close them. A tab with an error in its console fails the test."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> Tab:
            tab = browser.open_tab(url, **options)
            stack.callback(browser.close_tab, tab)
            return tab

        yield open_one


@pytest.fixture(scope="session")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that leave it as it is, and need no text models: digits, a model with two versions, and a
    collection of vectors.
    """
    folder = tmp_path_factory.mktemp("small")
    with serving(folder, DIGITS + versioned_entry(folder, "all") + VECTORS) as running:
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
