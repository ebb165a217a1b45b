"""The view of requests: live, filtered, and the phases of one."""

import re

from playwright.sync_api import expect

from tests.e2e.server import RunningServer
from tests.web.tabs import Open

PIXELS = {"batch_size": 1, "input_data": [8] * 64}


def test_requests_appear_and_show_their_phases(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/requests")
    page = tab.page
    expect(tab.phase()).to_have_attribute("data-phase", "connected")
    answer = small_site.client.post("/models/digits/infer", json=PIXELS, headers={"x-request-id": "seen-by-the-page"})
    assert answer.status_code == 200
    row = page.locator("tr[data-request=seen-by-the-page]")
    expect(row).to_contain_text("/models/digits/infer")
    row.get_by_role("button").click()
    phases = page.locator(".phases")
    for name in ("Read and decode", "Queue", "Compute", "Encode and send", "Total"):
        expect(phases.get_by_role("row", name=re.compile(rf"^{name} .*\d (µs|ms|s)"))).to_be_visible()
    expect(phases).to_contain_text("seen-by-the-page")
    expect(phases).to_contain_text(re.compile(r"Sizes: \d+ B in, \d+ B out"))
    phases.get_by_role("link", name="seen-by-the-page").click()
    expect(tab.heading("Request seen-by-the-page")).to_be_visible()
    assert page.url.endswith("#/requests/seen-by-the-page")
    page.go_back()
    row.get_by_role("button").click()
    expect(phases).to_have_count(1)
    row.get_by_role("button").click()
    expect(phases).to_have_count(0)


def test_address_of_request_opens_its_phases(open_tab: Open, small_site: RunningServer) -> None:
    request_id = "of/a:link+1"
    headers = {"x-request-id": request_id}
    assert small_site.client.post("/models/digits/infer", json={"input_data": [1]}, headers=headers).status_code == 400
    tab = open_tab(f"{small_site.url}/#/requests/of%2Fa%3Alink%2B1")
    page = tab.page
    for _ in range(2):
        phases = page.get_by_role("group", name="Phases of POST /models/digits/infer")
        expect(phases.get_by_role("row", name=re.compile("^Total"))).to_be_visible()
        expect(phases).to_contain_text("expected")
        expect(page.locator(".request-facts")).to_contain_text("400")
        page.reload()
    assert tab.serious_findings() == []
    # A request that ends while the page is open appears too.
    tab.show("#/requests/later")
    expect(page.locator(".empty")).to_contain_text("The server keeps no request with this id.")
    small_site.client.post("/models/digits/infer", json=PIXELS, headers={"x-request-id": "later"})
    expect(page.get_by_role("group", name=re.compile("Phases of"))).to_be_visible()


def test_failed_requests_are_filtered_with_reason(open_tab: Open, small_site: RunningServer) -> None:
    small_site.infer("digits", **PIXELS)
    assert small_site.client.post("/models/digits/infer", json={"input_data": [1, 2]}).status_code == 400
    assert small_site.client.post("/models/two-versions/infer", json={"text": "x"}).status_code == 400
    page = open_tab(f"{small_site.url}/#/requests").page
    expect(page.locator("tbody tr[data-status='200']").first).to_be_visible()
    page.get_by_label("Status").select_option("failed")
    expect(page.locator("tbody tr[data-status='200']")).to_have_count(0)
    page.get_by_label("Model").select_option("digits")
    rows = page.locator("tbody tr")
    expect(rows.filter(has_text="two-versions")).to_have_count(0)
    expect(rows.first).to_contain_text("400")
    rows.first.get_by_role("button").click()
    expect(page.locator(".phases .notice-error")).to_contain_text("expected")
    # The address has the filter, so that it can be sent to a colleague.
    assert page.url.endswith("#/requests?status=failed&model=digits")


def test_paused_list_stays_until_resumed(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/requests")
    page = tab.page
    small_site.infer("digits", **PIXELS)
    rows = page.locator("tbody tr")
    expect(rows.first).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    small_site.client.post("/models/digits/infer", json=PIXELS, headers={"x-request-id": "after-the-pause"})
    other = open_tab(f"{small_site.url}/#/requests").page
    expect(other.locator("tr[data-request=after-the-pause]")).to_be_visible()
    expect(page.locator("tr[data-request=after-the-pause]")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("tr[data-request=after-the-pause]")).to_be_visible()


def test_answer_of_playground_links_to_its_request(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/playground/digits")
    page = tab.page
    page.get_by_role("button", name="Draw the example of 3").click()
    shown = page.get_by_role("region", name="Timing").get_by_role("link")
    request_id = shown.inner_text()
    shown.click()
    expect(tab.heading(f"Request {request_id}")).to_be_visible()
    expect(page.get_by_role("group", name="Phases of POST")).to_be_visible()
