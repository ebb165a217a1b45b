"""Every view: without findings of axe-core, at any width, in both colours, by keyboard; and a server that goes away."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.configs import DIGITS
from tests.e2e.server import Fork, RunningServer, serving
from tests.web.tabs import LONG_WITHOUT_SERVER, Open, Tab

NARROW, WIDE = 360, 1440
VIEWS = {"#/overview": "Overview", "#/models": "Models", "#/models/digits": "digits", "#/requests": "Requests"}
VIEWS |= {"#/collections": "Collections", "#/collections/vectors": "vectors"}
VIEWS |= {"#/manual": "Roundhouse", "#/manual/kubernetes": "Kubernetes"}


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (NARROW, "dark"),
        pytest.param(NARROW, "light", marks=pytest.mark.extended),
        pytest.param(WIDE, "light", marks=pytest.mark.extended),
    ],
)
def test_views_are_accessible_at_any_width(open_tab: Open, small_site: RunningServer, width: int, scheme: str) -> None:
    small_site.infer("digits", batch_size=1, input_data=[8] * 64)
    tab = open_tab(small_site.url, width=width, scheme=scheme)
    for view, heading in VIEWS.items():
        tab.show(view)
        expect(tab.heading(heading)).to_be_visible()
        expect(tab.page.locator(".busy")).to_have_count(0)
        assert tab.serious_findings() == [], view
        assert tab.overflow() == 0, view
    assert (luminance(tab) < 0.5) == (scheme == "dark")


def test_dialogs_are_accessible(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/models", width=NARROW)
    for button, dialog in (
        ("Register a model", "Register a model"),
        ("Unload", "Unload digits?"),
        ("Enter an API key", "API key"),
    ):
        tab.page.get_by_role("button", name=button).first.click()
        expect(tab.page.get_by_role("dialog", name=dialog)).to_be_visible()
        assert tab.serious_findings() == [], dialog
        assert tab.overflow() == 0, dialog
        tab.page.keyboard.press("Escape")


def test_finding_of_axe_is_reported(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url)
    expect(tab.heading("Overview")).to_be_visible()
    tab.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert [finding["id"] for finding in tab.serious_findings()] == ["label"]


def test_page_is_used_by_keyboard(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url)
    page = tab.page
    expect(tab.heading("Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="Requests").focus()
    page.keyboard.press("Enter")
    expect(tab.heading("Requests")).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("navigation").get_by_role("link", name="Requests")).to_have_attribute(
        "aria-current", "page"
    )
    assert page.title() == "Requests · Roundhouse"


def test_choice_of_colours_is_kept(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url, scheme="light")
    expect(tab.heading("Overview")).to_be_visible()
    light = luminance(tab)
    tab.page.get_by_role("button", name="Colours: auto; change to light").click()
    tab.page.get_by_role("button", name="Colours: light; change to dark").click()
    assert luminance(tab) < 0.5 < light
    tab.page.reload()
    expect(tab.page.get_by_role("button", name="Colours: dark; change to auto")).to_be_visible()
    assert luminance(tab) < 0.5


def test_unknown_view_leads_back(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/nothing")
    tab.page.get_by_role("link", name="Go to the overview").click()
    expect(tab.heading("Overview")).to_be_visible()


def test_server_goes_away_and_comes_back(open_tab: Open, tmp_path: Path) -> None:
    with serving(tmp_path, DIGITS) as first:
        first.wait_ready()
        port = first.port
        tab = open_tab(first.url)
        tab.allowed = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "503")
        phase = tab.phase()
        expect(phase).to_have_attribute("data-phase", "connected")
        expect(tab.page.locator("tr[data-model=digits]")).to_be_visible()
    expect(phase).to_have_attribute("data-phase", re.compile("^(reconnecting|away)$"))
    tab.page.evaluate(LONG_WITHOUT_SERVER)
    expect(phase).to_have_attribute("data-phase", "away")
    expect(phase).to_have_text("Server away")
    # The last values stay, and are said to be old.
    expect(tab.page.locator("tr[data-model=digits]")).to_be_visible()
    expect(tab.page.locator(".view-head")).to_contain_text("last known values")
    config = str(tmp_path / "config.toml")
    with RunningServer(["--config", config, "--port", str(port)], fork=Fork(needs_torch=False)) as again:
        again.wait_ready()
        tab.page.evaluate("dispatchEvent(new Event('online'))")  # else up to ten seconds until the next attempt
        expect(phase).to_have_attribute("data-phase", "connected")
        expect(tab.page.locator(".view-head .state")).to_have_text("healthy")
        again.infer("digits", batch_size=1, input_data=[8] * 64)
        tab.show("#/requests")
        expect(tab.page.locator("tbody tr").first).to_contain_text("/models/digits/infer")


def luminance(tab: Tab) -> float:
    """Return how light the ground of the page is: 0 is black, 1 is white."""
    value: float = tab.page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + b / 765, 0)"
    )
    return value


def test_view_of_older_page_offers_reload(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url)
    tab.allowed = ("404", "Failed to fetch dynamically imported module")
    expect(tab.heading("Overview")).to_be_visible()
    # As after an update of the server, which then answers the old addresses with 404.
    tab.page.route("**/views/requests.js", lambda route: route.fulfill(status=404))
    tab.show("#/requests")
    expect(tab.page.get_by_role("alert")).to_contain_text("The view could not be loaded.")
    tab.page.unroute("**/views/requests.js")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.heading("Requests")).to_be_visible()


# Changes the hash where the page begins to listen for changes; no event tells of it.
CHANGE_BEFORE_LISTENING = """const add = window.addEventListener;
window.addEventListener = function (kind, ...more) {
  if (kind === "hashchange") history.replaceState(null, "", "#/requests");
  return add.call(window, kind, ...more);
};"""


def test_hash_that_changes_while_page_starts_is_followed(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(small_site.url, is_fresh=True)
    tab.page.add_init_script(CHANGE_BEFORE_LISTENING)
    tab.page.reload()
    expect(tab.heading("Requests")).to_be_visible()


def test_registration_leaves_framework_to_server(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/models")
    page = tab.page
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=201, json={})

    page.route("**/models", answer)
    page.get_by_role("button", name="Register a model").click()
    dialog = page.get_by_role("dialog", name="Register a model")
    dialog.get_by_label("Path or address").fill("hf://org/name")
    with page.expect_response("**/models"):
        dialog.get_by_role("button", name="Register and load").click()
    assert sent == [{"name": "org/name", "path": "hf://org/name"}]
    tab.allowed = ("404",)
    expect(dialog).to_have_count(0)
