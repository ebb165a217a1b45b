"""Pictures in the playground: chosen, drawn and dropped; their labels and similarities; and their requests as code."""

import ast
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from app.embedded.copy_shapes import COMMITTED, EXAMPLE
from tests.e2e.server import RunningServer, serving
from tests.support.models import onnx_graphs, onnx_images
from tests.web.snippets import run_javascript, run_python, run_shell, shown
from tests.web.tabs import Open

PHOTO = COMMITTED / EXAMPLE


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a classifier of pictures, a pipeline of it, and a model of their vectors."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "colours").mkdir()
    onnx_graphs.save(onnx_images.pooled(output="image_embeds"), folder / "colours")
    entries = "".join(
        f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\n{more}'
        for name, path, more in (
            ("shapes", COMMITTED, ""),
            ("colours", folder / "colours", "[models.onnx_models.image]\n"),
        )
    )
    entries += """
[[pipelines]]
name = "named"
inputs = ["photo"]
outputs = { shapes = "shape" }
steps = [{ name = "shape", model = "shapes", inputs = { image = "photo" } }]
"""
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


def base64_of(content: bytes) -> str:
    return b64encode(content).decode()


def bars(page: Page, label: str) -> list[str]:
    return page.get_by_role("list", name=label).locator(".pg-bar-label").all_inner_texts()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_labels_of_pictures_are_those_of_server(
    open_tab: Open, pictures: RunningServer, width: int, scheme: str
) -> None:
    tab = open_tab(f"{pictures.url}/#/playground/shapes", width=width, scheme=scheme)
    page = tab.page
    classify = page.get_by_role("button", name="Classify")
    expect(classify).to_be_disabled()
    page.get_by_label("Pictures", exact=True).set_input_files(PHOTO)
    page.get_by_role("button", name="Draw an example").click()
    expect(page.locator(".pg-thumbnails img")).to_have_count(2)
    page.get_by_label("Only the best labels").fill("4")
    classify.click()
    expect(page.get_by_role("table", name="Phases of the request")).to_be_visible()
    (expected,) = pictures.infer("shapes", image=base64_of(PHOTO.read_bytes()), top_k=4)["predictions"]
    assert bars(page, f"Labels of {EXAMPLE}") == [each["label"] for each in expected]
    assert bars(page, "Labels of star.png")[0] == "star"
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)
    page.get_by_role("button", name="Remove star.png").click()
    expect(page.locator(".pg-thumbnails img")).to_have_count(1)


def test_pipeline_of_pictures_has_labels(open_tab: Open, pictures: RunningServer) -> None:
    page = open_tab(f"{pictures.url}/#/playground/named").page
    page.get_by_role("button", name="Draw an example").click()
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("table", name="Phases of the request")).to_contain_text("Step shape")
    assert bars(page, "Labels of star.png")[0] == "star"
    expect(page.get_by_text("The server scales each picture")).to_have_count(0)
    expect(page.get_by_role("link", name="Similarity")).to_have_count(0)


def test_similarities_of_dropped_pictures_are_cosines(open_tab: Open, pictures: RunningServer) -> None:
    tab = open_tab(f"{pictures.url}/#/playground/colours")
    page = tab.page
    drop = """([encoded, name]) => {
        const bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], name, { type: "image/jpeg" }));
        data.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
        document.querySelector(".pg-drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    }"""
    expect(page.locator(".pg-drop")).to_be_visible()
    page.evaluate(drop, [base64_of(PHOTO.read_bytes()), EXAMPLE])
    page.get_by_role("button", name="Draw an example").click()
    expect(page.locator(".pg-thumbnails li")).to_have_count(2)
    with page.expect_response("**/infer") as response:
        page.get_by_role("button", name="Compare").click()
    vectors = np.array(response.value.json()["embeddings"])
    cells = page.locator(".pg-matrix td")
    expect(cells).to_have_count(4)
    cosines = np.array(cells.all_inner_texts(), float).reshape(2, 2)
    np.testing.assert_allclose(cosines, vectors @ vectors.T, atol=0.0051)
    alone = pictures.infer("colours", image=base64_of(PHOTO.read_bytes()))["embeddings"][0]
    np.testing.assert_allclose(vectors[0], alone, atol=1e-6)
    assert bars(page, "Nearest to picture 1, by similarity") == ["star.png"]


def test_form_with_pictures_runs_in_every_language(
    open_tab: Open, pictures: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_tab(f"{pictures.url}/#/playground/shapes").page
    photo = tmp_path / "a \"b\" 'c', d;e.jpg"
    photo.write_bytes(PHOTO.read_bytes())
    page.get_by_label("Pictures", exact=True).set_input_files(photo)
    page.get_by_label("Only the best labels").fill("3")
    expected = pictures.infer("shapes", image=base64_of(PHOTO.read_bytes()), top_k=3)["predictions"]
    monkeypatch.chdir(tmp_path)
    assert json.loads(run_shell(shown(page, "curl"), tmp_path))["predictions"] == expected
    assert ast.literal_eval(run_python(shown(page, "Python (httpx)")))["predictions"] == expected
    # The page has no files: here the function of Node.js returns the picture.
    first, rest = shown(page, "JavaScript").split("\n", 1)
    assert first == 'import { openAsBlob } from "node:fs";'
    blob = f"const openAsBlob = async () => new Blob([new Uint8Array({list(PHOTO.read_bytes())})]);\n"
    (answer,) = run_javascript(page, blob + rest)
    assert answer["predictions"] == expected
