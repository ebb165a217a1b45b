"""The page in Firefox: every view, a digit drawn, a chat streamed and stopped, a model in the page, a lost server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.e2e.configs import DIGITS
from tests.e2e.server import Fork, RunningServer, serving
from tests.support.firefox import FIREFOX, Firefox, firefox
from tests.web.runtime import is_present
from tests.web.tabs import LONG_WITHOUT_SERVER, SERIOUS

pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(FIREFOX is None, reason="firefox: expected a browser in PATH, got none; install firefox-esr"),
    pytest.mark.extended,
]

NARROW, WIDE = 360, 1440
VIEWS = {
    "#/overview": "Overview",
    "#/models": "Models",
    "#/models/digits": "digits",
    "#/requests": "Requests",
    "#/playground": "Playground",
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """Run the browser, in dark colours."""
    with firefox(tmp_path_factory.mktemp("firefox"), is_dark=True) as running:
        yield running


def show(tab: Firefox, server: RunningServer, view: str, heading: str) -> None:
    """Load a view from the server, with no errors of the last."""
    tab.load("about:blank")
    tab.errors.clear()
    tab.load(f"{server.url}/{view}")
    tab.wait_for(f"[...document.querySelectorAll('h1, h2, h3')].some(each => each.innerText.trim() === '{heading}')")


def click(tab: Firefox, button: str) -> None:
    """Click a button once it is there and enabled."""
    found = f"[...document.querySelectorAll('button')].find(each => each.innerText.trim() === '{button}')"
    tab.wait_for(f"({found}) && !({found}).disabled")
    tab.evaluate(f"({found}).click()")


def fill(tab: Firefox, label: str, value: str) -> None:
    """Enter a text in the field with this label, as the browser itself does."""
    labels = "[...document.querySelectorAll('label')]"
    field = f"{labels}.find(each => each.innerText.trim() === '{label}')?.control"
    tab.wait_for(f"({field}) !== undefined")
    tab.evaluate(
        f"Object.assign({field}, {{ value: '{value}' }}).dispatchEvent(new Event('input', {{ bubbles: true }}))"
    )


def serious_findings(tab: Firefox) -> list[Any]:
    """Return the findings of axe-core that are serious or critical."""
    # A policy of the page refuses other scripts, so the script is evaluated in the page by the browser.
    tab.evaluate(f"(() => {{ if (!window.axe) {{ {Axe().axe_script} }} }})()")
    found = tab.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [(each["id"], each["nodes"]) for each in found["violations"] if each["impact"] in SERIOUS]


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_views_in_firefox_are_accessible(tab: Firefox, playground: RunningServer, width: int) -> None:
    tab.set_width(width)
    # One load for all views: each load needs the script of axe-core again.
    show(tab, playground, "#/requests", "Requests")
    for view, heading in VIEWS.items():
        tab.evaluate(f"location.hash = '{view}'")
        tab.wait_for(f"document.querySelector('h1')?.innerText.trim() === '{heading}'")
        tab.wait_for("document.querySelector('.busy') === null")
        assert serious_findings(tab) == [], view
        assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0, view
        assert tab.errors == [], view


def test_digit_drawn_in_firefox_is_read(tab: Firefox, playground: RunningServer) -> None:
    tab.set_width(WIDE)
    show(tab, playground, "#/playground/digits", "Draw a digit")
    box = tab.wait_for("document.querySelector('[role=application]')?.getBoundingClientRect()")
    assert box["bottom"] <= 900
    path = ((0.3, 0.1), (0.5, 0.1), (0.75, 0.1), (0.62, 0.3), (0.5, 0.5), (0.42, 0.7), (0.35, 0.9))
    tab.draw([(round(box["left"] + x * box["width"]), round(box["top"] + y * box["height"])) for x, y in path])
    tab.wait_for("document.querySelector('.pg-digits .pg-strong')?.innerText.includes('7')")
    assert tab.errors == []


def test_chat_in_firefox_streams_and_stops(tab: Firefox, playground: RunningServer) -> None:
    show(tab, playground, "#/playground/writer", "Playground")
    fill(tab, "Max tokens", "400")
    tab.evaluate("[...document.querySelectorAll('label')].find(each => each.innerText.trim() === 'Ignore eos').click()")
    fill(tab, "Message", "Tell me about lists.")
    click(tab, "Send")
    tab.wait_for("document.querySelectorAll('.pg-token').length > 3")
    click(tab, "Stop")
    tab.wait_for("document.querySelector('.pg-figures')?.innerText.includes('stopped by you')")
    assert tab.evaluate("document.querySelectorAll('.pg-token').length") < 400
    assert tab.errors == []


@pytest.mark.skipif(not is_present(), reason="app/web/runtime: expected onnxruntime-web, got nothing; run make web")
def test_model_runs_in_firefox(tab: Firefox, playground: RunningServer) -> None:
    show(tab, playground, "#/playground/digits?tool=browser", "Playground")
    assert tab.evaluate("crossOriginIsolated")
    click(tab, "Load the model")
    tab.wait_for("document.querySelector('.pg-loaded') !== null")
    tab.wait_for("document.querySelector('[aria-label=\"Draw the example of 3\"]') !== null")
    tab.evaluate("document.querySelector('[aria-label=\"Draw the example of 3\"]').click()")
    tab.wait_for("document.querySelector('.pg-verdict')?.innerText.includes('Both read 3.')")
    assert tab.errors == []


def test_lost_server_is_found_again_by_firefox(tab: Firefox, tmp_path: Path) -> None:
    phase = "document.querySelector('.connection')?.dataset.phase"
    with serving(tmp_path, DIGITS) as first:
        port = first.wait_ready().port
        show(tab, first, "#/overview", "Overview")
        tab.wait_for(f"{phase} === 'connected'")
    tab.wait_for(f"['reconnecting', 'away'].includes({phase})")
    tab.evaluate(f"({LONG_WITHOUT_SERVER})()")
    tab.wait_for(f"{phase} === 'away'")
    assert tab.evaluate("document.querySelector('tr[data-model=digits]') !== null"), "the last values stay"
    config = str(tmp_path / "config.toml")
    with RunningServer(["--config", config, "--port", str(port)], fork=Fork(needs_torch=False)) as again:
        again.wait_ready()
        tab.evaluate("dispatchEvent(new Event('online'))")  # else up to ten seconds until the next attempt
        tab.wait_for(f"{phase} === 'connected'")
