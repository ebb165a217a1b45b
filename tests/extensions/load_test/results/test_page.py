"""The page of a result in a real browser: plots, colours, widths, and no request for anything else."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extensions.load_test.report import result
from extensions.load_test.results.page import html_page
from extensions.load_test.results.tally import Outcome
from extensions.load_test.run import LoadPlan
from tests.extensions.load_test.test_run import run_of, target_at
from tests.support.chromium import NEEDS_CHROMIUM, Browser, chromium

pytestmark = NEEDS_CHROMIUM

NARROW, WIDE = 380, 1200

_RECTANGLES = """[...document.querySelectorAll('%s')].map(each => {
  const r = each.getBoundingClientRect();
  return [r.left, r.top, r.right, r.bottom].map(Math.round);
})"""
_CONTRAST = """(() => {
  const part = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
  const light = text => { const [r, g, b] = text.match(/[0-9.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b) };
  const page = getComputedStyle(document.body).backgroundColor;
  const against = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const texts = [...document.querySelectorAll('h1, p, td, .plot span')].map(each => getComputedStyle(each).color);
  const tiles = [...document.querySelectorAll('.tiles span')].map(each =>
    against(getComputedStyle(each).color, getComputedStyle(each.parentElement).backgroundColor));
  const lines = [...document.querySelectorAll('polyline')].map(each => getComputedStyle(each).stroke);
  return {page, text: Math.min(...texts.map(each => against(each, page)), ...tiles),
    line: Math.min(...lines.map(each => against(each, page)))};
})()"""


def measured() -> dict[str, Any]:
    """Return the result of a run with every row: failures, timings of the server, warnings, long names."""
    plan = LoadPlan(rate=5000.0, concurrency=None, duration_s=30.0)
    run = run_of(plan, port=1)
    draw = random.Random(0)
    start_s = run.tally.start_s
    for number in range(5000):
        planned_s = start_s + number * 0.006
        first_s, done_s = planned_s + draw.expovariate(100), planned_s + draw.expovariate(20)
        run.tally.record(Outcome(planned_s, done_s, 200, "", "queue;dur=2, compute;dur=31", first_s, done_s, 9))
        if number % 10 == 0:
            run.tally.record(Outcome(planned_s, done_s, 503, f"a_long_name_of_a_failure_without_breaks_{number % 3}"))
    run.tally.not_sent = 1234567
    run.ended_by = "duration"
    target = target_at(65535)
    return result(run, plan, target, 0.95, "2026-11-23T06:30:38+00:00")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "result.html"
    file.write_text(html_page(measured()), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_plots_fill_page_of_any_width(browser: Browser, file: Path, width: int) -> None:
    browser.load(file, width, "light")
    plots = browser.evaluate(_RECTANGLES % ".plot svg")
    assert len(plots) == 3
    for left, top, right, bottom in plots:
        assert right - left >= 0.7 * min(width, 960)
        assert bottom - top >= 150
    # Nothing but wide tables scrolls to the side.
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    for selector in (".plot polyline", ".plot rect", ".plot line"):
        shapes = browser.evaluate(_RECTANGLES % selector)
        assert shapes
        assert all(right > left or bottom > top for left, top, right, bottom in shapes)
        assert all(left >= 0 and right <= width for left, _, right, _ in shapes)


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_axis_labels_are_readable_apart(browser: Browser, file: Path, width: int) -> None:
    browser.load(file, width, "light")
    sizes = browser.evaluate(
        "[...document.querySelectorAll('.plot span')].map(each => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) >= 11
    for place in range(3):
        for axis in ("xs", "ys"):
            labels = _labels(browser, place, axis)
            assert len(labels) >= 2
            assert all(left >= 0 and right <= width for left, _, right, _ in labels)
            assert not [(a, b) for number, a in enumerate(labels) for b in labels[:number] if _overlap(a, b)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast_in_scheme(browser: Browser, file: Path, scheme: str) -> None:
    browser.load(file, WIDE, scheme)
    found = browser.evaluate(_CONTRAST)
    assert (found["page"] == "rgb(255, 255, 255)") == (scheme == "light")
    # WCAG 2.2: 4.5 for text, 3 for shapes.
    assert found["text"] >= 4.5
    assert found["line"] >= 3


def test_page_requests_and_reports_nothing(browser: Browser, file: Path) -> None:
    browser.load(file, WIDE, "light")
    assert {event["request"]["url"] for event in browser.named("Network.requestWillBeSent")} == {file.as_uri()}
    assert browser.named("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


def _labels(browser: Browser, place: int, axis: str) -> list[list[int]]:
    """Return the rectangles of the labels of one axis of one plot."""
    labels: list[list[int]] = browser.evaluate(
        f"[...document.querySelectorAll('.plot')[{place}].querySelectorAll('.{axis} span')].map(each => {{"
        "const r = each.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom].map(Math.round) })"
    )
    return labels


def _overlap(a: list[int], b: list[int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
