"""The view of collections: their state, a search by vector and by text, and orders to records."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.server import RunningServer
from tests.web.tabs import Open
from tests.web.test_overview import as_text, first_events, sample

RECORDS = [
    {"id": "east", "vector": [1, 0, 0], "text": "The sun rises.", "metadata": {"topic": "sky"}},
    {"id": "north/1", "vector": [0, 1, 0], "metadata": {"topic": "ice"}},
    {"id": "north east", "vector": [1, 1, 0]},
]
TEXTS: dict[str, Any] = {
    "name": "texts",
    "rows": 250_000,
    "dimensions": 384,
    "metric": "cosine",
    "model": "minilm",
    "metadata_keys": ["year"],
    "memory_bytes": 384_000_000,
    "disk_bytes": 1,
    "max_rows": 300_000,
    "index": {"state": "building", "recall": None, "unindexed_rows": 0, "reason": None},
}


def ids(page: Page) -> list[str | None]:
    return [row.get_attribute("data-record") for row in page.locator(".hits tbody tr").all()]


def test_records_are_saved_found_and_deleted(open_tab: Open, small_site: RunningServer) -> None:
    answer = small_site.client.post("/v1/collections/vectors/upsert", json={"records": RECORDS})
    assert answer.status_code == 200, answer.text
    tab = open_tab(f"{small_site.url}/#/collections")
    page = tab.page
    row = page.locator("tr[data-collection=vectors]")
    expect(row.locator("[data-label=Rows]")).to_have_text("3")
    row.get_by_role("link", name="vectors").click()
    search = page.get_by_role("search", name="Search vectors")
    search.get_by_label("Vector of 3 numbers").fill("[1, 0.1 0]")
    page.keyboard.press("Enter")
    first = page.locator(".hits tbody tr").first
    expect(first).to_contain_text("The sun rises.")
    expect(first).to_contain_text("topic: sky")
    expect(first.locator("td").first).to_have_text("0.9950")
    assert ids(page) == ["east", "north east", "north/1"]
    # By the vector of a record, whose id is a part of an address.
    page.get_by_role("button", name="Find records similar to north/1").click()
    expect(first.locator("td").first).to_have_text("1.0000")
    assert ids(page) == ["north/1", "north east", "east"]
    search.get_by_label("Filter as JSON").fill('{"topic": {"exists": true}}')
    search.get_by_role("button", name="Search").click()
    expect(page.locator(".hits tbody tr")).to_have_count(2)
    assert tab.serious_findings() == []
    page.get_by_role("button", name="Delete north/1").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator(".hits tbody tr")).to_have_count(1)
    form = page.get_by_role("form", name="Save a record")
    form.get_by_label("Id").fill("west")
    form.get_by_label("Vector").fill("-1, 0, 0")
    form.get_by_label("Metadata").fill('{"topic": "sky"}')
    form.get_by_role("button", name="Save the record").click()
    expect(form.get_by_role("status")).to_have_text("The record west is saved.")
    stored = small_site.client.get("/v1/collections/vectors/records/west").json()
    assert (stored["vector"], stored["metadata"]) == ([-1, 0, 0], {"topic": "sky"})
    form.get_by_role("button", name="Delete all records").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 3 records").click()
    expect(form.get_by_role("status")).to_have_text("3 records are deleted.")
    expect(page.locator(".view-head")).to_contain_text("0 rows of 3 dimensions")


def test_collection_is_created_and_deleted(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/collections")
    tab.allowed = ("409", f"404 (Not Found) {small_site.url}/v1/collections/made")  # read once more while it is deleted
    page = tab.page
    page.get_by_role("button", name="Create a collection").click()
    dialog = page.get_by_role("dialog", name="Create a collection")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("vectors")
    dialog.get_by_label("Dimensions").fill("2")
    dialog.get_by_label("Metric").select_option("euclid")
    assert tab.serious_findings() == []
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text('a collection named "vectors" exists already')
    dialog.get_by_label("Name").fill("made")
    dialog.get_by_role("button", name="Create").click()
    expect(tab.heading("made")).to_be_visible()
    expect(page.locator(".fact-list")).to_contain_text("euclid")
    page.get_by_role("button", name="Delete the collection").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete made").click()
    expect(tab.heading("Collections")).to_be_visible()
    expect(page.locator("tr[data-collection]")).to_have_count(1)
    assert small_site.client.get("/v1/collections/made").status_code == 404
    tab.show("#/collections/vectors")
    expect(tab.heading("vectors")).to_be_visible()
    expect(page.locator(".fact-list")).to_be_visible()
    expect(page.get_by_role("button", name="Delete the collection")).to_have_count(0)


def test_wrong_vector_is_refused_with_advice(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/collections/vectors")
    tab.allowed = ("400",)
    search = tab.page.get_by_role("search")
    for vector, message in (
        ("east", "query: expected 3 numbers"),
        ("1, 2", "query: expected vectors of 3 numbers, got 2"),
    ):
        search.get_by_label("Vector").fill(vector)
        search.get_by_role("button", name="Search").click()
        expect(tab.page.get_by_role("alert")).to_contain_text(message)


def test_collection_with_model_is_searched_by_text(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/overview")
    page = tab.page
    sent: list[Any] = []

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            route.fulfill(json=TEXTS)
            return
        sent.append(json.loads(route.request.post_data or ""))
        hit = {"id": "1", "score": 0.5, "text": "Engines wait here.", "metadata": {}}
        route.fulfill(json={"collection": "texts", "results": [hit], "tokens": 7, "latency_ms": 2.5})

    page.route("**/v1/collections/texts*", answer)
    page.route("**/v1/collections/texts/search", answer)
    tab.show("#/collections/texts")
    expect(page.locator(".view-head")).to_contain_text("building")
    expect(page.locator(".fact-list")).to_contain_text("250,000 of at most 300,000")
    page.get_by_label("Text", exact=True).first.fill("Where do engines wait?")
    page.get_by_label("Results").fill("3")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".hits tbody tr")).to_contain_text("Engines wait here.")
    assert sent == [{"query": "Where do engines wait?", "top_k": 3}]


def test_build_of_index_shows_its_progress(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab("about:blank", is_fresh=True)
    page = tab.page
    page.route("**/v1/collections", lambda route: route.fulfill(json={"collections": [TEXTS]}))
    work = {"kind": "index", "subject": "collection", "name": "texts", "what": "training the centres", "unit": "rounds"}
    shown = sample(1) | {"progress": [work | {"done": 3, "total": 8}, work | {"name": "other", "done": 1, "total": 8}]}
    body = "".join(map(as_text, [*first_events(), ("sample", shown)]))
    page.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"{small_site.url}/#/collections")
    row = page.locator("tr[data-collection=texts]")
    expect(row.locator(".index-work")).to_have_text(re.compile("training the centres, 3 of 8 rounds"))
    progress = row.get_by_role("progressbar", name="Build of the index of texts")
    expect(progress).to_have_js_property("value", 3)


@pytest.mark.extended
def test_unknown_collection_is_said_to_be_unknown(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab(f"{small_site.url}/#/collections/none")
    tab.allowed = ("404",)
    expect(tab.page.get_by_role("alert")).to_contain_text("There is no such collection.")
