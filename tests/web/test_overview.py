"""The overview: what it says of the server, and that it stays small."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.server import RunningServer
from tests.web.tabs import Open, Tab

PIXELS = {"batch_size": 1, "input_data": [8] * 64}
# Instead of the server, the test writes the events: `feed(text)`.
FED_EVENTS = """
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (path !== "events") return real(path, options);
    const body = new ReadableStream({ start(control) {
      const coder = new TextEncoder();
      window.feed = text => control.enqueue(coder.encode(text));
    } });
    return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
  };
"""


def test_overview_shows_server_devices_and_models(open_tab: Open, small_site: RunningServer) -> None:
    page = open_tab(small_site.url).page
    expect(page.locator(".view-head .state")).to_have_text("healthy")
    expect(page.locator(".view-head")).to_contain_text(re.compile(r"version \d+\.\d+.*up for \d"))
    cpu = page.locator(".devices section").filter(has_text="CPU").first
    expect(cpu.get_by_role("img")).to_have_attribute(
        "aria-label",
        re.compile(r"Memory for models of cpu: Models [\d.]+ [MG]iB, .*Free [\d.]+ GiB of [\d.]+ GiB"),
    )
    names = [model["name"] for model in small_site.client.get("/models").json()["models"]]
    rows = page.locator(".models-table tbody tr")
    expect(rows).to_have_count(len(names))
    assert [row.get_attribute("data-model") for row in rows.all()] == names
    digits = page.locator("tr[data-model=digits]")
    expect(digits.locator(".state")).to_have_text("ready")
    expect(digits.locator("[data-label=Memory]")).to_have_text(re.compile(r"[\d.]+ [KM]iB"))


def test_numbers_follow_requests_without_reload(open_tab: Open, small_site: RunningServer) -> None:
    page = open_tab(small_site.url).page
    expect(page.locator(".connection")).to_have_attribute("data-phase", "connected")
    for _ in range(20):
        small_site.infer("digits", **PIXELS)
    total = small_site.client.get("/health").json()["metrics"]["requests_total"]
    expect(page.locator(".tile").filter(has_text="in progress").locator(".tile-total strong")).to_have_text(
        f"{total:,}"
    )
    # The rate of an interval: it is above zero in the sample after the requests.
    rate = page.locator("tr[data-model=digits] [data-label=Requests]")
    p99 = page.locator("tr[data-model=digits] [data-label=p99]")
    expect(rate).to_have_text(re.compile(r"^(?!0 )[\d.]+ /s$"))
    expect(p99).to_have_text(re.compile(r"^[\d.]+ (µs|ms|s)$"))
    charts = page.locator("figure.chart")
    expect(charts.filter(has_text="Throughput").locator("canvas")).to_be_visible()
    latency = charts.filter(has_text="Latency, mean by phase")
    expect(latency.get_by_role("img")).to_have_attribute("aria-label", re.compile("queue .*, compute .*, rest .*"))
    for title, unit in (("CPU of the server", "cores?"), ("Memory of the server", "[MG]iB")):
        chart = charts.filter(has_text=title)
        expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile(rf"{title}: server [\d.]+ {unit}"))
        expect(chart.locator("canvas")).to_be_visible()
    expect(charts.filter(has_text="Requests by model").locator(".legend")).to_contain_text("digits")


def test_long_work_is_shown_while_it_runs(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab("about:blank", is_fresh=True)
    tab.page.add_init_script(FED_EVENTS)
    tab.page.goto(small_site.url)
    work = {"kind": "compile", "subject": "model", "name": "m", "what": "kernels", "unit": "kernels", "seconds": 12.4}
    download = {"kind": "download", "subject": "model", "name": "big", "what": "files", "unit": "bytes", "seconds": 3}
    works = [work | {"done": 1, "total": 2}, download | {"done": 1 << 30, "total": 4 << 30}, work | {"total": 0}]
    script = "events => { for (const event of events) feed(event) }"
    tab.page.evaluate(script, [as_text(event) for event in first_events()])
    tab.page.evaluate(script, [as_text(("sample", sample(1) | {"progress": works}))])
    panel = tab.page.get_by_role("region", name="Work in progress")
    expect(panel.locator(".work")).to_have_text(
        [
            re.compile(r"Compiling for m\s+kernels, 1 of 2 kernels, 12.4 s"),
            re.compile(r"Downloading big\s+files, 1 GiB of 4 GiB, 3.00 s"),
            re.compile(r"Compiling for m\s+kernels, 12.4 s"),
        ]
    )
    expect(panel.get_by_role("progressbar")).to_have_count(2)
    tab.page.evaluate(script, [as_text(("sample", sample(2) | {"progress": []}))])
    expect(panel).to_have_count(0)


@pytest.mark.extended
def test_page_left_open_holds_flat_memory(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab("about:blank", is_fresh=True)
    tab.page.add_init_script(FED_EVENTS)
    tab.page.goto(small_site.url)
    script = "events => { for (const event of events) feed(event) }"
    tab.page.evaluate(script, [as_text(event) for event in first_events()])

    def draw(first: int, last: int, rounds: int) -> dict[str, int]:
        """Draw the page with each of these samples, and show every view so many times."""
        samples = [as_text(("sample", sample(number))) for number in range(first, last + 1)]
        script = "async texts => { for (const text of texts) { feed(text); await new Promise(requestAnimationFrame) } }"
        tab.page.evaluate(script, samples)
        expect(tab.page.locator(".tile-value").first).to_have_text(f"{last} /s")
        for view in ("#/models", "#/requests", "#/overview") * rounds:
            tab.show(view)
            expect(tab.heading(view.removeprefix("#/").capitalize())).to_be_visible()
        expect(tab.page.locator("figure.chart canvas").first).to_be_visible()
        return counters(tab)

    draw(1, 20, rounds=2)
    few, many = draw(21, 40, rounds=2), draw(41, 110, rounds=5)
    assert many["documents"] == few["documents"]
    # Less than one for each sample or each change of the view.
    assert many["jsEventListeners"] - few["jsEventListeners"] < 20
    assert many["nodes"] - few["nodes"] < 100


def test_requests_never_exceed_two_hundred(open_tab: Open, small_site: RunningServer) -> None:
    tab = open_tab("about:blank", is_fresh=True)
    tab.page.route("**/events", lambda route: stream(route, 20, of_requests=50))
    tab.page.goto(f"{small_site.url}/#/requests")
    expect(tab.page.locator("tbody tr")).to_have_count(200)
    expect(tab.page.locator("tbody tr").first).to_contain_text("/20/49")


@pytest.mark.parametrize(
    "width", [1280, *(pytest.param(each, marks=pytest.mark.extended) for each in (400, 800, 1600))]
)
def test_tables_fit_with_long_names(open_tab: Open, small_site: RunningServer, width: int) -> None:
    tab = open_tab("about:blank", is_fresh=True, width=width)
    names = [f"{org}/Qwen2.5-Coder-0.5B-Instruct-{org}" for org in ("onnx-community", "sentence-transformers", "a")]
    requests = {"requests": [{**record(f"/models/{name}/infer"), "model": name} for name in names], "missed": 0}
    hello, _, history, _ = first_events()
    events = [
        hello,
        ("models", {"models": list(map(model, names))}),
        history,
        ("sample", sample(1)),
        ("requests", requests),
    ]
    tab.page.route(
        "**/events", lambda route: route.fulfill(content_type="text/event-stream", body="".join(map(as_text, events)))
    )
    tab.page.goto(small_site.url)
    for view in ("#/overview", "#/requests"):
        tab.show(view)
        expect(tab.page.locator("tbody tr")).to_have_count(3)
        assert tab.overflow() == 0, view
        assert tab.page.evaluate(TABLE_FAULTS) == [], view


# Tables that scroll to the side, lines of headers or of numbers that wrap, and numbers that are not at the right.
TABLE_FAULTS = """() => {
  const found = [];
  const note = (fault, element) => found.push(`${fault}: ${element.textContent.trim().slice(0, 60)}`);
  for (const box of document.querySelectorAll(".scroll-x")) if (box.scrollWidth > box.clientWidth) note("scrolls", box);
  for (const cell of document.querySelectorAll("table thead th, table .number")) {
    const style = getComputedStyle(cell);
    if (style.display === "none" || cell.closest("thead")?.offsetHeight < 2) continue;
    if (style.whiteSpace !== "nowrap") note("wraps", cell);
    if (cell.matches(".number") && style.textAlign !== "right") note("is at the left", cell);
  }
  return found;
}"""


def counters(tab: Tab) -> dict[str, int]:
    """Return what the browser holds for the page after it has collected garbage."""
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("HeapProfiler.collectGarbage")
    found: dict[str, int] = session.send("Memory.getDOMCounters")
    return found


def stream(route: Route, samples: int, of_requests: int) -> None:
    """Answer GET /events with so many samples at once, each with so many requests."""
    events = first_events()
    for number in range(1, samples + 1):
        records = [record(f"{number}/{each}") for each in range(of_requests)]
        events += [("sample", sample(number)), ("requests", {"requests": records[::-1], "missed": 0})]
    route.fulfill(status=200, content_type="text/event-stream", body="".join(map(as_text, events)))


def as_text(event: tuple[str, Any]) -> str:
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def first_events() -> list[tuple[str, Any]]:
    """Return the events with which a stream begins, of a server without models."""
    caller = {"tenant": "", "key_id": "", "scopes": ["read"], "is_operator": True, "sees_all_models": True}
    about = {"name": "roundhouse", "version": "0.1.0", "started_s": 0, "workers": 1, "labels": {}}
    return [
        ("hello", {"server": about, "auth": False, "caller": caller, "interval_s": 2, "history_s": 900}),
        ("models", {"models": []}),
        ("history", {"interval_s": 2, "columns": {"t": []}, "devices": {}, "models": {}}),
        ("requests", {"requests": [], "missed": 0}),
    ]


def sample(number: int) -> dict[str, Any]:
    """Return the sample with this number, which is also its requests per second."""
    device = {"id": "cpu", "name": "cpu", "total_bytes": 8 << 30, "free_bytes": 4 << 30, "limit_bytes": 4 << 30}
    device |= {"reserved_bytes": 1 << 20, "kv_bytes": 0, "kv_used_bytes": 0, "kv_cached_bytes": 0}
    server = {"requests_per_s": number, "latency_ms": 3, "queue_ms": 1, "compute_ms": 1, "memory_bytes": 1 << 20}
    times = {"t": 2 * number, "state": "healthy", "uptime_s": 2 * number}
    return {**times, "server": server, "devices": [device], "models": {"m": {"requests_per_s": 1}}}


def model(name: str) -> dict[str, Any]:
    texts = dict.fromkeys(("reason", "canary", "shadow", "dtype", "previous_version"))
    names = {"name": name, "framework": "onnx", "task": "tensor", "state": "ready", "active_version": "12"}
    return {**names, **texts, "device": "cpu", "memory_bytes": 1 << 30, "generates": False, "versions": {}}


def record(key: str) -> dict[str, Any]:
    texts = dict.fromkeys(("code", "error", "adapter", "batch_rows", "cache_hit"))
    times = dict.fromkeys(("decode_ms", "queue_ms", "compute_ms", "encode_ms", "total_ms"), 1)
    names = {"key": key, "id": key, "tenant": "", "method": "POST", "path": f"/{key}", "model": "m", "version": "1"}
    return {**names, **texts, **times, "ended_s": 1, "status": 200, "request_bytes": 1, "response_bytes": 1}
