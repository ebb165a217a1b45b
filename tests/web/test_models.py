"""Orders to models by the page: load, unload, traffic, registration."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.configs import DIGITS
from tests.e2e.server import MODELS, RunningServer, serving, wait_until
from tests.web.conftest import versioned_entry
from tests.web.tabs import Open

pytestmark = pytest.mark.extended

PIXELS = {"batch_size": 1, "input_data": [8] * 64}
NAME = "two-versions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose models the tests change; each leaves them as they were."""
    folder = tmp_path_factory.mktemp("changed")
    entries = f'[models]\nroots = ["{MODELS}"]\n' + DIGITS + versioned_entry(folder, "latest")
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def page(open_tab: Open, server: RunningServer) -> Page:
    tab = open_tab(f"{server.url}/#/models")
    # A model that is being deleted may be read once more.
    tab.allowed = (f"404 (Not Found) {server.url}/models/digits-2",)
    page = tab.page
    expect(card(page, "digits").locator(".state")).to_have_text("ready")
    return page


def card(page: Page, name: str) -> Locator:
    return page.locator(f"li[data-model={name}]")


def state_of(server: RunningServer, name: str) -> str:
    state: str = server.client.get(f"/models/{name}").json()["state"]
    return state


def test_model_is_unloaded_and_loaded(page: Page, server: RunningServer) -> None:
    digits = card(page, "digits")
    digits.get_by_role("button", name="Unload").click()
    dialog = page.get_by_role("dialog", name="Unload digits?")
    expect(dialog).to_contain_text("Callers get 503 until it is loaded again.")
    dialog.get_by_role("button", name="Unload").click()
    expect(digits.locator(".state")).to_have_text("unloaded")
    assert state_of(server, "digits") == "unloaded"
    assert server.client.post("/models/digits/infer", json=PIXELS).status_code == 503
    digits.get_by_role("button", name="Load").click()
    expect(digits.locator(".state")).to_have_text("ready")
    expect(digits.get_by_role("status").filter(has_text="done")).to_be_visible()
    server.infer("digits", **PIXELS)


@pytest.mark.parametrize("how", ["Escape", "Cancel", "Close"])
def test_refused_question_changes_nothing(page: Page, server: RunningServer, how: str) -> None:
    digits = card(page, "digits")
    digits.get_by_role("button", name="Unload").click()
    dialog = page.get_by_role("dialog", name="Unload digits?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        dialog.get_by_role("button", name=how).click()
    expect(dialog).to_have_count(0)
    expect(digits.get_by_role("button", name="Unload")).to_be_focused()
    assert state_of(server, "digits") == "ready"


def test_canary_share_follows_slider(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/#/models/{NAME}")
    form = page.get_by_role("form", name="Canary")
    slider = form.get_by_role("slider")
    slider.focus()
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    expect(form.get_by_role("spinbutton")).to_have_value("20")
    form.get_by_role("button", name="Start canary").click()
    expect(page.get_by_role("img", name=re.compile("Share of requests"))).to_have_attribute(
        "aria-label", re.compile("version 2 80 %, canary 1 20 %")
    )
    assert server.client.get(f"/models/{NAME}").json()["canary"] == {"version": "1", "percent": 20}
    form.get_by_role("button", name="End canary").click()
    expect(form.get_by_role("button", name="Start canary")).to_be_enabled()
    assert server.client.get(f"/models/{NAME}").json()["canary"] is None


def test_shadow_responses_are_compared(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/#/models/{NAME}")
    form = page.get_by_role("form", name="Shadow")
    form.get_by_role("button", name="Start shadow").click()
    expect(form.get_by_role("button", name="End shadow")).to_be_visible()
    shape = server.client.get(f"/models/{NAME}").json()["inputs"][0]["shape"]
    for _ in range(5):
        server.infer(NAME, input_data=[1] * abs(shape[-1]))
    # Version 1 multiplies by another number than version 2.
    wait_until(lambda: server.sample("roundhouse_shadow_requests_total", model=NAME, outcome="different") == 5)
    expect(page.get_by_role("img", name=re.compile("Compared responses"))).to_have_attribute(
        "aria-label", re.compile("differ 5")
    )
    form.get_by_role("button", name="End shadow").click()
    expect(form.get_by_role("button", name="Start shadow")).to_be_enabled()


def test_traffic_is_switched_and_rolled_back(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/#/models/{NAME}")
    page.locator("tr[data-version='1']").get_by_role("button", name="Switch traffic here").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch to 1").click()
    expect(page.locator("tr[data-version='1']")).to_contain_text("active")
    assert server.client.get(f"/models/{NAME}").json()["active_version"] == "1"
    page.get_by_role("button", name="Roll back to 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back to 2").click()
    expect(page.locator("tr[data-version='2']")).to_contain_text("active")
    assert server.client.get(f"/models/{NAME}").json()["active_version"] == "2"


def test_model_is_registered_and_deleted(page: Page, server: RunningServer) -> None:
    page.get_by_role("button", name="Register a model").click()
    dialog = page.get_by_role("dialog", name="Register a model")
    dialog.get_by_label("Folder of the server").select_option(str(MODELS / "digits"))
    expect(dialog.get_by_label("Path or address")).to_have_value(str(MODELS / "digits"))
    expect(dialog.get_by_label("From the files")).to_be_checked()
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("digits")
    for path, name in (
        ("./m/org model/model.onnx", "org-model"), ("hf://org/name@v1", "org/name"), ("/a/Qwen Q4.gguf", "Qwen-Q4"),
        ("s3://bucket/folder/bert/", "bert"), (str(MODELS / "digits"), "digits"),
    ):  # fmt: skip
        dialog.get_by_label("Path or address").fill(path)
        expect(dialog.get_by_label("Name", exact=True)).to_have_value(name)
    dialog.get_by_label("Name", exact=True).fill("digits-2")
    dialog.get_by_label("More keys").fill('{"execution_providers": ["CPU"]}')
    dialog.get_by_role("button", name="Register and load").click()
    expect(page.get_by_role("heading", name="digits-2", level=1)).to_be_visible()
    expect(page.locator(".view-head .state")).to_have_text("ready")
    assert server.client.get("/models/digits-2").json()["framework"] == "onnx"
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete digits-2").click()
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()
    expect(page.locator("li.card")).to_have_count(2)
    assert len(server.client.get("/models").json()["models"]) == 2


def test_refused_registration_says_why(open_tab: Open, server: RunningServer, tmp_path: Path) -> None:
    tab = open_tab(f"{server.url}/#/models")
    tab.allowed = ("403",)
    page = tab.page
    page.get_by_role("button", name="Register a model").click()
    dialog = page.get_by_role("dialog", name="Register a model")
    dialog.get_by_label("Path or address").fill(str(tmp_path))
    dialog.get_by_label("Name", exact=True).fill("elsewhere")
    dialog.get_by_role("button", name="Register and load").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The model was not registered.")
    expect(dialog.get_by_role("alert")).to_contain_text("forbidden")
    dialog.get_by_label("More keys").fill("{not JSON")
    dialog.get_by_role("button", name="Register and load").click()
    expect(dialog.get_by_role("alert")).to_contain_text("more keys: expected JSON")
    assert len(server.client.get("/models").json()["models"]) == 2


def test_closed_registration_reports_its_end(open_tab: Open, server: RunningServer, tmp_path: Path) -> None:
    tab = open_tab(f"{server.url}/#/models")
    tab.allowed = ("403",)
    page = tab.page
    page.get_by_role("button", name="Register a model").click()
    dialog = page.get_by_role("dialog", name="Register a model")
    dialog.get_by_label("Path or address").fill(str(tmp_path))
    dialog.get_by_label("Name", exact=True).fill("elsewhere")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/models", hold)
    with page.expect_request("**/models"):
        dialog.get_by_role("button", name="Register and load").click()
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.get_by_role("status").filter(has_text="Registering and loading")).to_be_visible()
    held[0].continue_()
    notice = page.get_by_role("alert").filter(has_text="Registering and loading failed.")
    expect(notice).to_contain_text("forbidden")
    page.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)


def test_unknown_model_is_said_to_be_unknown(open_tab: Open, server: RunningServer) -> None:
    tab = open_tab(f"{server.url}/#/models/none")
    tab.allowed = ("404",)
    expect(tab.page.get_by_role("alert")).to_contain_text("There is no such model.")


def test_older_version_beside_newer_is_only_loaded(open_tab: Open, small_site: RunningServer) -> None:
    page = open_tab(f"{small_site.url}/#/models/{NAME}").page
    page.locator("tr[data-version='1']").get_by_role("button", name="Switch traffic here").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch to 1").click()
    note = page.get_by_role("status").filter(has_text="Version 2 keeps the traffic, as version_policy says.")
    expect(note).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    expect(note).to_have_count(0)
