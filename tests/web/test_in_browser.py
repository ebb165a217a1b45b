"""Models in the page: the answers of onnxruntime-web are those of the server."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.configs import DIGITS
from tests.e2e.server import RunningServer, serving
from tests.web.runtime import has_npm, is_present
from tests.web.tabs import Open, Tab

pytestmark = pytest.mark.extended

PROBABILITY_TOLERANCE = 1e-5
COSINE_TOLERANCE = 1e-5
INT8_COSINE = 0.99
"""Of one text with the same text in another batch, whose range decides how int8 rounds."""


@pytest.fixture(scope="module")
def runtime() -> None:
    """Skip where the runtime is absent; fail in CI, which fetches it."""
    if is_present():
        return
    message = "app/web/runtime: expected onnxruntime-web, got nothing; run make web"
    if os.environ.get("CI") and has_npm():
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def tab(open_tab: Open, runtime: None, playground: RunningServer) -> Tab:
    assert playground.client.post("/models/encoder-int8/load").status_code == 200
    return open_tab(f"{playground.url}/#/playground")


def load(tab: Tab, name: str) -> None:
    """Load a model into the page."""
    tab.show(f"#/playground/{name}?tool=browser")
    tab.page.get_by_role("button", name="Load the model").click()
    expect(tab.page.locator(".pg-loaded")).to_be_visible()


def verdict(page: Page) -> str:
    """Return how both answers agree."""
    return page.locator('.pg-verdict[data-phase="done"]').inner_text()


def probabilities(page: Page, side: str) -> list[float]:
    """Return the percentages that are shown; of "< 0.01 %" the number."""
    texts = page.locator(f'[data-side="{side}"] .pg-bars .number').all_inner_texts()
    return [float(re.sub("[<%]", "", text)) for text in texts]


def test_digit_in_page_is_read_as_on_server(tab: Tab) -> None:
    load(tab, "digits")
    page = tab.page
    expect(page.locator(".pg-loaded")).to_contain_text("onnxruntime-web with")
    # The page is isolated from other origins, so that WebAssembly may have threads.
    assert page.evaluate("crossOriginIsolated")
    for digit in (3, 7):
        page.get_by_role("button", name=f"Draw the example of {digit}").click()
        expect(page.locator(".pg-verdict")).to_contain_text(f"Both read {digit}.")
        # A last bit may change the last digit that is shown.
        assert probabilities(page, "page") == pytest.approx(probabilities(page, "server"), abs=0.11)
    found = re.search(r"differ by at most ([\d.e+-]+)\.$", verdict(page))
    assert found is not None
    assert float(found[1]) <= PROBABILITY_TOLERANCE
    expect(page.locator('[data-side="page"]')).to_contain_text("without a network")
    assert tab.serious_findings() == []


@pytest.mark.parametrize(("name", "least"), [("encoder", 1 - COSINE_TOLERANCE), ("encoder-int8", INT8_COSINE)])
def test_embeddings_in_page_are_those_of_server(tab: Tab, playground: RunningServer, name: str, least: float) -> None:
    load(tab, name)
    page = tab.page
    texts = ["A cat sleeps.", "Züge brauchen Schienen 🚂", "naïve café, 你好"]
    page.get_by_label("Texts, one per line").fill("\n".join(texts))
    page.get_by_role("button", name="Run both").click()
    found = re.search(r"cosine of at least (\d\.\d+)\.", verdict(page))
    assert found is not None
    assert float(found[1]) >= least
    vectors = np.array(playground.infer(name, text=texts)["embeddings"])
    shown = page.locator('[data-side="page"] .pg-matrix td').all_inner_texts()
    tolerance = 0.0051 if name == "encoder" else 0.03
    np.testing.assert_allclose(np.array(shown, float).reshape(3, 3), vectors @ vectors.T, atol=tolerance)
    assert tab.serious_findings() == []


def test_int8_graph_in_page_is_that_of_server(tab: Tab) -> None:
    load(tab, "encoder-int8")
    tab.page.get_by_label("Texts, one per line").fill("One text is one batch here and there.")
    tab.page.get_by_role("button", name="Run both").click()
    found = re.search(r"cosine of at least (\d\.\d+)\.", verdict(tab.page))
    assert found is not None
    assert float(found[1]) >= 1 - 1e-3
    size = tab.page.locator(".pg-loaded").inner_text()
    load(tab, "encoder")
    # The copy with int8 weights was fetched, not the original.
    assert float(size.split()[0]) < float(tab.page.locator(".pg-loaded").inner_text().split()[0])


def test_tensors_in_page_are_those_of_server(tab: Tab) -> None:
    load(tab, "pictures")
    page = tab.page
    page.get_by_label("Fill with").select_option("ramp")
    page.get_by_role("button", name="Run both").click()
    found = re.search(r"differ by at most ([\d.e+-]+)\.$", verdict(page))
    assert found is not None
    assert float(found[1]) <= PROBABILITY_TOLERANCE


def test_missing_runtime_and_forbidden_files_are_explained(open_tab: Open, tmp_path: Path) -> None:
    entries = DIGITS.replace('name = "digits"', 'name = "digits"\ndownloadable = true') + other(DIGITS)
    with serving(tmp_path, entries) as server:
        tab = open_tab(f"{server.wait_ready().url}/#/playground/other?tool=browser")
        expect(tab.page.get_by_text("other may not be downloaded.")).to_be_visible()
        expect(tab.page.get_by_text("downloadable = true")).to_be_visible()
        tab.allowed = ("404", "ort.wasm", "ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED_ENCODING")  # the server ends first
        tab.page.route("**/runtime/*", lambda route: route.fulfill(status=404))
        tab.show("#/playground/digits?tool=browser")
        tab.page.get_by_role("button", name="Load the model").click()
        expect(tab.page.get_by_text("This server has no runtime for browsers.")).to_be_visible()
        expect(tab.page.get_by_text("make web")).to_be_visible()
        assert tab.serious_findings() == []


def other(entry: str) -> str:
    return entry.replace('name = "digits"', 'name = "other"')
