"""Tasks in the playground: texts, pictures and sounds with parameters, and their predictions as they are drawn."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.server import RunningServer, serving
from tests.support.models.task_folders import save_task_model
from tests.support.models.tasks.inputs import RATE, pictures, png, sounds, wav
from tests.web.snippets import run_javascript, run_python, run_shell, shown
from tests.web.tabs import Open

CHOSEN = ("fill-mask", "zero-shot-classification")
"""Tasks that the class of the model does only where its entry says so."""
TASKS = (
    "token-classification", "question-answering", "table-question-answering", "object-detection", "image-segmentation",
    "depth-estimation", "audio-classification", "keypoint-matching", "mask-generation", *CHOSEN,
)  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a tiny model of each task."""
    folder = tmp_path_factory.mktemp("tasks")
    entries = ""
    for name in TASKS:
        chosen = f'task = "{name}"\n' if name in CHOSEN else ""
        path = save_task_model(folder / name, name)
        entries += f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\n{chosen}'
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


def run(page: Page) -> Any:
    """Run the form; return the prediction of the answer."""
    with page.expect_response("**/infer") as response:
        page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("table", name="Phases of the request")).to_be_visible()
    return response.value.json()["predictions"][0]


def bars(page: Page, label: str) -> list[str]:
    return page.get_by_role("list", name=label).locator(".pg-bar-label").all_inner_texts()


def choose_picture(page: Page, folder: Path) -> None:
    """Choose a picture, 96 pixels wide and 64 high."""
    file = folder / "picture.png"
    file.write_bytes(png(pictures()[1]))
    page.get_by_label("Picture", exact=True).set_input_files(file)


def number(locator: Locator, name: str) -> float:
    return float(locator.get_attribute(name) or "nan")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_found_words_are_marked_in_text(open_tab: Open, tasks: RunningServer, width: int, scheme: str) -> None:
    tab = open_tab(f"{tasks.url}/#/playground/token-classification", width=width, scheme=scheme)
    page = tab.page
    text = "the 🚂 fox jumps over the lazy dog"
    page.get_by_label("Text", exact=True).fill(text)
    if width < 1020:
        page.get_by_text("Options", exact=True).click()
    page.get_by_label("Aggregation strategy").select_option("simple")
    found = run(page)
    assert found
    assert page.locator(".pg-words").inner_text().count("🚂") == 1
    marks = page.locator(".pg-words mark")
    expect(marks).to_have_count(len(found))
    for each, mark in zip(found, marks.all(), strict=True):
        assert mark.inner_text() == f"{text[each['start'] : each['end']]} {each['entity_group']}"
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


def test_answer_is_marked_in_its_context(open_tab: Open, tasks: RunningServer) -> None:
    page = open_tab(f"{tasks.url}/#/playground/question-answering").page
    page.get_by_label("Top k").fill("3")
    answers = run(page)
    assert len(answers) == 3
    assert bars(page, "Words") == [each["answer"] for each in answers]
    first = min(answers, key=lambda each: each["start"])
    expect(page.locator(".pg-words mark").first).to_have_text(first["answer"])


def test_labels_of_request_are_bars(open_tab: Open, tasks: RunningServer) -> None:
    tab = open_tab(f"{tasks.url}/#/playground/zero-shot-classification")
    tab.allowed = ("400",)
    page = tab.page
    page.get_by_label("Candidate labels").fill("fox\ndog")
    prediction = run(page)
    assert sorted(prediction["labels"]) == ["dog", "fox"]
    assert bars(page, "Labels") == prediction["labels"]
    page.get_by_label("Candidate labels").fill("")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("parameters.candidate_labels")


def test_tokens_of_each_mask_are_bars(open_tab: Open, tasks: RunningServer) -> None:
    page = open_tab(f"{tasks.url}/#/playground/fill-mask").page
    page.get_by_label("Text", exact=True).fill("the [MASK] fox [MASK]")
    first, second = run(page)
    lists = page.get_by_role("list", name="Labels")
    expect(lists).to_have_count(2)
    for labels, expected in zip(lists.all(), (first, second), strict=True):
        found = labels.locator(".pg-bar-label").all_inner_texts()
        assert [each.strip() for each in found] == [each["token_str"].strip() for each in expected]


def test_answer_about_table_is_json(open_tab: Open, tasks: RunningServer) -> None:
    page = open_tab(f"{tasks.url}/#/playground/table-question-answering").page
    button = page.get_by_role("button", name="Run", exact=True)
    page.get_by_label("Table", exact=True).fill("{")
    expect(button).to_be_disabled()
    page.get_by_label("Table", exact=True).fill('{"part": ["engine"], "wheels": ["8"]}')
    answer = run(page)
    assert json.loads(page.get_by_label("JSON", exact=True).inner_text()) == answer


def test_boxes_of_objects_lie_on_picture(open_tab: Open, tasks: RunningServer, tmp_path: Path) -> None:
    tab = open_tab(f"{tasks.url}/#/playground/object-detection")
    page = tab.page
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    choose_picture(page, tmp_path)
    page.get_by_label("Threshold").fill("0.1")
    objects = run(page)
    assert objects
    drawn = page.locator(".pg-picture svg")
    expect(drawn).to_have_attribute("viewBox", "0 0 96 64")
    boxes = drawn.locator("rect").all()
    assert len(boxes) == len(objects)
    for box, each in zip(boxes, objects, strict=True):
        assert (number(box, "x"), number(box, "y")) == (each["box"]["xmin"], each["box"]["ymin"])
        assert number(box, "width") == each["box"]["xmax"] - each["box"]["xmin"]
        assert number(box, "height") == each["box"]["ymax"] - each["box"]["ymin"]
    assert bars(page, "Objects") == [each["label"] for each in objects]
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


def test_masks_of_segments_lie_on_picture(open_tab: Open, tasks: RunningServer, tmp_path: Path) -> None:
    tab = open_tab(f"{tasks.url}/#/playground/image-segmentation")
    page = tab.page
    choose_picture(page, tmp_path)
    segments = run(page)
    expect(page.locator(".pg-picture .pg-segment")).to_have_count(len(segments))
    masks = page.locator(".pg-thumbnails img[alt^=Mask]")
    expect(masks).to_have_count(len(segments))
    for mask, each in zip(masks.all(), segments, strict=True):
        assert mask.get_attribute("src") == f"data:image/png;base64,{each['mask']}"
        assert mask.get_attribute("alt") == f"Mask of {each['label']}"
        assert mask.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [96, 64]
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


def test_masks_of_points_lie_on_picture(open_tab: Open, tasks: RunningServer, tmp_path: Path) -> None:
    tab = open_tab(f"{tasks.url}/#/playground/mask-generation")
    page = tab.page
    choose_picture(page, tmp_path)
    run(page)
    expect(page.get_by_text("Nothing was found.")).to_be_visible()
    page.get_by_label("Pred iou thresh").fill("0")
    page.get_by_label("Stability score thresh").fill("0")
    page.get_by_label("Points per crop").fill("2")
    found = run(page)
    masks = page.locator(".pg-thumbnails img[alt^=Mask]")
    expect(masks).to_have_count(len(found["masks"]))
    for name in ("Pred iou thresh", "Stability score thresh", "Points per crop"):
        page.get_by_label(name).fill("")
    page.get_by_label("Input points").fill("[[[40, 30]], [[5, 6]]]")
    prediction = run(page)
    expect(page.locator(".pg-picture .pg-segment")).to_have_count(6)
    expect(masks).to_have_count(6)
    assert masks.nth(4).get_attribute("alt") == "Mask of Object 2, mask 2"
    assert masks.nth(4).get_attribute("src") == f"data:image/png;base64,{prediction['masks'][1][1]}"
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


def test_depth_is_a_picture(open_tab: Open, tasks: RunningServer, tmp_path: Path) -> None:
    page = open_tab(f"{tasks.url}/#/playground/depth-estimation").page
    choose_picture(page, tmp_path)
    prediction = run(page)
    depth = page.get_by_role("img", name="Depth")
    assert depth.get_attribute("src") == f"data:image/png;base64,{prediction['depth']}"


def test_two_pictures_are_matched(open_tab: Open, tasks: RunningServer, tmp_path: Path) -> None:
    page = open_tab(f"{tasks.url}/#/playground/keypoint-matching").page
    button = page.get_by_role("button", name="Run", exact=True)
    page.get_by_role("button", name="Draw an example").click()
    expect(page.locator(".pg-thumbnails li")).to_have_count(1)
    expect(button).to_be_disabled()
    files = [tmp_path / "left.png", tmp_path / "right.png"]
    for file, picture in zip(files, pictures(), strict=False):
        file.write_bytes(png(picture))
    page.get_by_label("Two pictures", exact=True).set_input_files(files)
    expect(page.locator(".pg-thumbnails li")).to_have_text(["left.png", "right.png"])
    matches = run(page)
    assert matches
    assert json.loads(page.get_by_label("JSON", exact=True).inner_text()) == matches


def test_sound_runs_in_every_language(
    open_tab: Open, tasks: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_tab(f"{tasks.url}/#/playground/audio-classification").page
    page.get_by_role("button", name="Make a tone").click()
    assert len(run(page)) == 3
    (tmp_path / "tone.wav").write_bytes(tone := wav(sounds()[0], RATE))
    page.get_by_label("Sound", exact=True).set_input_files(tmp_path / "tone.wav")
    page.get_by_label("Top k").fill("2")
    expected = run(page)
    assert len(expected) == 2
    assert bars(page, "Labels") == [each["label"] for each in expected]
    monkeypatch.chdir(tmp_path)
    for answer in (
        json.loads(run_shell(shown(page, "curl"), tmp_path)),
        ast.literal_eval(run_python(shown(page, "Python (httpx)"))),
        run_javascript(page, _without_files(shown(page, "JavaScript"), tone))[0],
    ):
        assert [each["label"] for each in answer["predictions"][0]] == [each["label"] for each in expected]


def _without_files(text: str, content: bytes) -> str:
    """Return the JavaScript with a stand-in for the function of Node.js that reads a file: the page has no files."""
    first, rest = text.split("\n", 1)
    assert first == 'import { openAsBlob } from "node:fs";'
    return f"const openAsBlob = async () => new Blob([new Uint8Array({list(content)})]);\n{rest}"
