"""The playground of models whose vectors are sparse, or one for each token."""

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.e2e.server import RunningServer, serving
from tests.support.models.late_folders import save_pylate
from tests.support.models.sparse_folders import save_splade
from tests.support.models.text_files import TEXTS
from tests.web.tabs import Open

SIZE = 4096
"""Above the number of tokens of the tiny models."""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a model of each kind."""
    folder = tmp_path_factory.mktemp("vectors")
    paths = {"sparse": save_splade(folder / "sparse"), "multi": save_pylate(folder / "multi")}
    entries = (f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\n' for name, path in paths.items())
    with serving(folder, "".join(entries)) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_sparse_vectors_are_compared(open_tab: Open, vectors: RunningServer, width: int, scheme: str) -> None:
    tab = open_tab(f"{vectors.url}/#/playground/sparse", width=width, scheme=scheme)
    page = tab.page
    page.get_by_label("Texts, one per line").fill("\n".join(TEXTS[:3]))
    page.get_by_text("Options", exact=True).click()
    expect(page.get_by_label("Dimensions")).to_have_count(0)
    page.get_by_label("Elements").fill("5")
    with page.expect_response("**/infer") as response:
        page.get_by_role("button", name="Compare", exact=True).click()
    sparse = response.value.json()["sparse_embeddings"]
    dense = np.zeros((len(sparse), SIZE))
    for row, each in zip(dense, sparse, strict=True):
        row[each["indices"]] = each["values"]
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    cells = page.locator(".pg-matrix td")
    expect(cells).to_have_count(9)
    shown = [float(text) for text in cells.all_inner_texts()]
    np.testing.assert_allclose(shown, (dense @ dense.T).ravel(), rtol=0, atol=0.0051)
    expect(page.get_by_text("3 sparse vectors of up to 5 elements")).to_be_visible()
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


def test_vectors_of_tokens_rank(open_tab: Open, vectors: RunningServer) -> None:
    page = open_tab(f"{vectors.url}/#/playground/multi").page
    expect(page.get_by_role("navigation", name="Tools").get_by_role("link")).to_have_text(["Rank"])
    with page.expect_response("**/rerank") as response:
        page.get_by_role("button", name="Rank", exact=True).click()
    assert response.value.status == 200
    expect(page.get_by_role("table", name="Phases of the request")).to_be_visible()
