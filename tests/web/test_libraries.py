"""The modules of the page without a view: numbers as text, events, history, addresses."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.server import RunningServer
from tests.web.browsers import SharedBrowser

Run = Callable[..., Any]

NONE = "\N{EN DASH}"
DAY_S, INTERVAL_S, HISTORY_S = 86_400, 2, 900


@pytest.fixture(scope="module")
def run(browser: SharedBrowser, small_site: RunningServer) -> Iterator[Run]:
    """Return run(module, script, argument): the script's value, where `m` is the module of the page."""
    tab = browser.open_tab(small_site.url)
    tab.allowed = ("404",)  # one script asks for a model that is not there

    def in_page(module: str, script: str, argument: Any = None) -> Any:
        base = tab.page.locator("script[type=module]").get_attribute("src")
        assert base is not None
        path = base.replace("main.js", module)
        return tab.page.evaluate(
            f"async argument => {{ const m = await import(new URL({json.dumps(path)}, document.baseURI)); {script} }}",
            argument,
        )

    yield in_page
    browser.close_tab(tab)


def test_durations_have_fitting_units(run: Run) -> None:
    seconds = [0, 0.000012, 0.00085, 0.0124, 0.85, 1.2, 59.2, 61, 3700, 90_000, None]
    assert run("lib/format.js", "return argument.map(m.formatDuration)", seconds) == [
        "0 ms", "12 µs", "0.85 ms", "12.4 ms", "850 ms", "1.20 s", "59.2 s", "1 min 1 s", "1 h 1 min", "1 d 1 h", NONE,
    ]  # fmt: skip


def test_sizes_and_counts_have_units(run: Run) -> None:
    sizes = [0, 1023, 1536, 5 * 2**20, 3.25 * 2**30, None]
    assert run("lib/format.js", "return argument.map(m.formatBytes)", sizes) == [
        "0 B", "1023 B", "1.50 KiB", "5 MiB", "3.25 GiB", NONE,
    ]  # fmt: skip
    counts = [0, 0.5, 999, 1234, 12_345, 4_560_000, 7.2e9, None]
    assert run("lib/format.js", "return argument.map(each => m.formatCount(each))", counts) == [
        "0", "0.50", "999", "1,234", "12.3 k", "4.56 M", "7.20 G", NONE,
    ]  # fmt: skip
    assert run("lib/format.js", "return [m.formatRate(12.34), m.formatPercent(0.05), m.withoutZeros('2.50 ms')]") == [
        "12.3 /s", "5 %", "2.5 ms",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_read_from_any_pieces(run: Run, size: int) -> None:
    text = ': alive\n\nevent: sample\ndata: {"a":\ndata: "é😀"}\n\ndata: [DONE]\r\n\r\n'
    text += "id: 7\ndata:x\n\nevent: lost\n\ndata: rest"
    found = run(
        "lib/sse.js",
        "const parser = new m.EventParser(); const found = [];"
        "for (let i = 0; i < argument.text.length; i += argument.size)"
        "  found.push(...parser.take(argument.text.slice(i, i + argument.size)));"
        "return found.map(({ event, data }) => [event, data]);",
        {"text": text, "size": size},
    )
    assert found == [["sample", '{"a":\n"é😀"}'], ["message", "[DONE]"], ["message", "x"]]


def test_event_without_end_is_refused(run: Run) -> None:
    script = "const parser = new m.EventParser(); const part = 'data: ' + 'x'.repeat(1 << 20) + '\\n';"
    script += "try { for (let i = 0; i < 32; i += 1) parser.take(part); } catch (error) { return [error.message] }"
    assert run("lib/sse.js", script) == ["an event of the server is too long"]


def test_history_of_day_stays_bounded(run: Run) -> None:
    script = """
      const history = new m.History();
      const columns = { t: [], requests_per_s: [] };
      history.replace({ interval_s: argument.interval, columns, devices: {}, models: {} }, argument.seconds);
      let largest = 0;
      const samples = argument.day / argument.interval;
      for (let i = 0; i < samples; i += 1) {
        // Every hour another model has requests, as callers come back to models that were deleted and made again.
        const hour = Math.floor(i * argument.interval / 3600);
        const live = { requests_per_s: i % 3 ? 1.5 : 0 };
        history.append({
          t: 1e9 + i * argument.interval,
          server: { requests_per_s: i, failed_per_s: null },
          devices: [{ id: hour % 2 ? 'cpu' : 'cuda:0', reserved_bytes: i, kv_used_bytes: null, kv_cached_bytes: 0 }],
          models: { steady: live, ['hourly-' + hour]: live, idle: { requests_per_s: 0 } },
        });
        largest = Math.max(largest, history.size);
      }
      const groups = [history.server, ...Object.values(history.devices), ...Object.values(history.models)];
      const lengths = groups.flatMap(Object.values).map(each => each.length);
      return { largest, length: history.t.length, lengths: [...new Set(lengths)],
        models: Object.keys(history.models), newest: history.t.at(-1), last: history.server.requests_per_s.at(-1) };
    """
    found = run("lib/history.js", script, {"day": DAY_S, "interval": INTERVAL_S, "seconds": HISTORY_S})
    points = HISTORY_S // INTERVAL_S + 1
    assert found["length"] == points
    assert found["lengths"] == [points]
    assert found["models"] == ["steady", "hourly-23"]
    # Times, two columns of the server, at most two devices and three models at once.
    assert found["largest"] <= points * (1 + 2 + 2 * 3 + 3)
    assert (found["newest"], found["last"]) == (1e9 + DAY_S - INTERVAL_S, DAY_S / INTERVAL_S - 1)


def test_history_leaves_out_samples_of_past(run: Run) -> None:
    script = """
      const history = new m.History();
      const columns = { t: [1, 3], requests_per_s: [5, 6] };
      history.replace({ interval_s: 2, columns, models: { a: { requests_per_s: [null, 1] } } });
      const sample = t => ({ t, server: { requests_per_s: 7 }, devices: [], models: { b: { requests_per_s: 2 } } });
      for (const t of [3, 2, 5]) history.append(sample(t));
      return [history.t, history.server.requests_per_s, history.models];
    """
    assert run("lib/history.js", script) == [
        [1, 3, 5],
        [5, 6, 7],
        {"a": {"requests_per_s": [None, 1, None]}, "b": {"requests_per_s": [None, None, 2]}},
    ]


def test_addresses_keep_any_model_name(run: Run) -> None:
    names = ["digits", "a/b c", "ü#?&%", "..", "100%"]
    script = "return argument.map(name => m.parseHash(m.link('models', name, { status: '5xx', model: '' })))"
    assert run("lib/router.js", script, names) == [
        {"view": "models", "name": name, "query": {"status": "5xx"}, "known": True} for name in names
    ]
    assert run("lib/router.js", "return [m.parseHash(''), m.parseHash('#/nothing/%E0')]") == [
        {"view": "overview", "name": None, "query": {}, "known": True},
        {"view": "nothing", "name": "%E0", "query": {}, "known": False},
    ]


def test_error_is_split_into_problem_and_advice(run: Run) -> None:
    script = """
      try { await m.getJson('models/none') } catch (error) {
        const { status, code, problem, advice, requestId } = error;
        return { status, code, problem, advice: advice.split(" is ")[0], id: Boolean(requestId) };
      }
    """
    assert run("lib/api.js", script) == {
        "status": 404,
        "code": "model_not_found",
        "problem": 'model "none" is not registered',
        "advice": "there",
        "id": True,
    }


def test_server_timing_is_parsed(run: Run) -> None:
    script = "return m.parseServerTiming('decode;dur=0.25, queue;dur=1, cache;desc=\"hit\", compute;dur=7.5;desc=x')"
    assert run("lib/api.js", script) == [
        {"name": "decode", "durationMs": 0.25},
        {"name": "queue", "durationMs": 1},
        {"name": "compute", "durationMs": 7.5},
    ]
