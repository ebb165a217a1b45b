"""The key of the page: asked for, checked, kept for the tab, and what it allows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from app.auth.principal import Scope
from tests.e2e.configs import DIGITS
from tests.e2e.server import RunningServer, serving
from tests.support.keyring import make_key, write_keys
from tests.web.conftest import VECTORS
from tests.web.tabs import WAIT_S, Open

pytestmark = pytest.mark.extended

OPERATOR = make_key("default")
READER = make_key("search", Scope.READ)
WRONG = "rh_0123456789ab_" + "x" * 43


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with an operator's key and a key that may only read."""
    folder = tmp_path_factory.mktemp("keyed")
    write_keys(folder / "keys.toml", OPERATOR, READER)
    config = f'[auth]\nmode = "required"\nkeys_file = "{folder / "keys.toml"}"\n' + DIGITS + VECTORS
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


def enter(page: Page, text: str) -> None:
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(text)
    dialog.get_by_role("button", name="Use this key").click()


def test_wrong_key_is_refused_and_right_one_works(open_tab: Open, keyed: RunningServer) -> None:
    tab = open_tab(f"{keyed.url}/#/models", is_fresh=True)
    tab.allowed = ("401",)
    page = tab.page
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    expect(tab.phase()).to_have_attribute("data-phase", "refused")
    expect(tab.phase()).to_have_text("Key needed")
    enter(page, "with space")
    expect(dialog.get_by_role("alert")).to_contain_text("without spaces")
    enter(page, WRONG)
    expect(dialog.get_by_role("alert")).to_contain_text("The server refused the key.")
    assert page.evaluate("sessionStorage.length") == 0
    enter(page, OPERATOR.text)
    expect(dialog).to_have_count(0)
    expect(tab.phase()).to_have_attribute("data-phase", "connected")
    expect(page.locator("li[data-model=digits] .state")).to_have_text("ready")
    expect(page.get_by_role("button", name="Unload")).to_be_visible()
    # In the session of this tab only: not in an address, and not in storage that outlives it.
    assert page.evaluate("[sessionStorage.getItem('roundhouse.key'), localStorage.length, document.cookie]") == [
        OPERATOR.text,
        0,
        "",
    ]
    secret = OPERATOR.text.rpartition("_")[2]
    assert not [address for address in addresses if secret in address]
    assert secret not in page.url
    page.reload()
    expect(tab.phase()).to_have_attribute("data-phase", "connected")


def test_documentation_opens_and_calls_with_key(open_tab: Open, keyed: RunningServer) -> None:
    tab = open_tab(f"{keyed.url}/#/models", key=OPERATOR.text)
    tab.allowed = ("401",)
    page = tab.page
    # Swagger UI resolves the whole document for each operation: seconds of a fast core, and the page stands meanwhile.
    page.set_default_timeout(4 * WAIT_S * 1000)
    page.get_by_role("navigation").get_by_role("link", name="API").click()
    expect(page).to_have_url(f"{keyed.url}/docs")
    operation = page.locator("[id$=models__name__get]").first
    operation.locator("button.opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_placeholder("name").fill("digits")
    status = operation.locator(".live-responses-table tbody td.response-col_status").first
    operation.get_by_role("button", name="Execute").click()
    expect(status).to_contain_text("401")
    page.get_by_role("button", name="Authorize").first.click()
    keys = page.locator(".dialog-ux")
    keys.get_by_label("auth-bearer-value").fill(OPERATOR.text)
    keys.get_by_role("button", name="Apply credentials").first.click()
    keys.get_by_role("button", name="Close").last.click()
    operation.get_by_role("button", name="Execute").click()
    expect(status).to_contain_text("200")
    expect(page.get_by_role("link", name="The page of the server")).to_have_js_property("href", f"{keyed.url}/")
    expect(page.get_by_role("link", name="The manual")).to_have_js_property("href", f"{keyed.url}/#/manual")


def test_manual_is_shown_without_key(open_tab: Open, keyed: RunningServer) -> None:
    tab = open_tab(f"{keyed.url}/#/manual/security", is_fresh=True)
    tab.allowed = ("401",)
    expect(tab.phase()).to_have_text("Key needed")
    expect(tab.heading("Security")).to_be_visible()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    tab.show("#/models")
    expect(tab.page.get_by_role("dialog", name="API key")).to_be_visible()


def test_key_to_read_shows_no_orders(open_tab: Open, keyed: RunningServer) -> None:
    tab = open_tab(f"{keyed.url}/#/models", key=READER.text)
    page = tab.page
    expect(page.locator("li[data-model=digits] .state")).to_have_text("ready")
    expect(page.get_by_role("button", name="Unload")).to_have_count(0)
    expect(page.get_by_role("button", name="Register a model")).to_have_count(0)
    tab.show("#/overview")
    expect(page.locator(".view-head")).to_contain_text("numbers of tenant search")
    expect(page.locator(".devices")).to_contain_text("Only an operator sees the memory of models.")
    expect(page.locator("figure.chart").filter(has_text="CPU of the server")).to_have_count(0)
    tab.show("#/collections")
    expect(page.locator("tr[data-collection=vectors]")).to_be_visible()
    expect(page.get_by_role("button", name="Create a collection")).to_have_count(0)
    tab.show("#/collections/vectors")
    expect(page.get_by_text("A key with the scope infer can search.")).to_be_visible()
    expect(page.get_by_role("search")).to_have_count(0)
    expect(page.get_by_role("form", name="Save a record")).to_have_count(0)


def test_forgotten_key_ends_the_view(open_tab: Open, keyed: RunningServer) -> None:
    tab = open_tab(f"{keyed.url}/#/models", key=READER.text)
    tab.allowed = ("401",)
    page = tab.page
    expect(page.locator("li[data-model=digits]")).to_be_visible()
    page.get_by_role("button", name="Change or forget the API key").click()
    page.get_by_role("button", name="Forget the key").click()
    expect(tab.phase()).to_have_attribute("data-phase", "refused")
    expect(page.locator("li[data-model=digits]")).to_have_count(0)
