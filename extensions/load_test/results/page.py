"""Write a result as one HTML page with plots as inline SVG. It loads nothing, and runs no script."""

from collections.abc import Sequence
from html import escape
from typing import Any

from extensions.load_test.results.plots import STYLE, Line, bars, lines

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --edge: #d7dce3; --page: #fff; --tile: #f6f7f9;
  --a: #2563eb; --b: #b45309; --c: #be123c; --warn: #fff4e0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a2b3; --edge: #344054; --page: #12161d;
  --tile: #1b212b; --a: #7aa7ff; --b: #f0a94a; --c: #fb7185; --warn: #3a2c10; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
p { margin: .25rem 0; color: var(--soft); overflow-wrap: anywhere }
ul.warnings { background: var(--warn); border-radius: .5rem; padding: .75rem 1rem .75rem 2rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.25rem 0 }
.tiles div { background: var(--tile); border-radius: .5rem; padding: .6rem .8rem } .tiles b { display: block;
  font-size: 1.3rem; font-variant-numeric: tabular-nums } .tiles span { color: var(--soft); font-size: .85rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--edge) }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere }
.key { margin-right: 1rem }
.k0::before, .k1::before, .k2::before { content: ""; display: inline-block; width: .8rem; height: .2rem;
  margin-right: .35rem; vertical-align: middle; background: var(--a) }
.k1::before { background: var(--b) } .k2::before { background: var(--c) }
th:nth-child(4):last-child, td:nth-child(4):last-child { text-align: left; overflow-wrap: anywhere; color: var(--soft) }
@media (max-width: 34rem) { body { margin: 1rem auto } th, td { padding: .3rem .2rem; font-size: .75rem }
  .plot { margin-left: -.75rem } }
"""
_QUANTILES = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")


def html_page(result: dict[str, Any]) -> str:
    """Return the page. Every text of the result is escaped."""
    target, load = result["target"], result["load"]
    title = f"{target['model']}: {_load_words(load)}"
    warnings = "".join(f"<li>{escape(each)}</li>" for each in result["warnings"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(_subtitle(result))}</p>\n"
        + (f'<ul class="warnings">{warnings}</ul>\n' if warnings else "")
        + _tiles(result)
        + _plots(result)
        + _durations(result)
        + _failures(result)
        + _generator(result)
        + "</body></html>\n"
    )


def _load_words(load: dict[str, Any]) -> str:
    if load["loop"] == "open":
        return f"{load['rate_per_s']:g} requests/s, {load['arrivals']}"
    return f"{load['concurrency']} callers"


def _subtitle(result: dict[str, Any]) -> str:
    target = result["target"]
    form = ", binary tensors" if target["encoding"] == "binary" else ""
    return (
        f"{target['url']}{target['path']}, protocol {target['protocol']}{form}, {_time(result['started'])}, "
        f"{result['elapsed_s']:g} s, ended by {result['ended_by']}"
    )


def _time(started: str) -> str:
    """Return the time of a result for readers; results have it in ISO 8601, in UTC."""
    return started.replace("T", " ").replace("+00:00", " UTC")


def _tiles(result: dict[str, Any]) -> str:
    latency, first = result["latency_ms"], result["time_to_first_token_ms"]
    tiles = [("responses/s", _number(result["throughput_per_s"]))]
    if result["tokens"]["generated"]:
        tiles.append(("tokens/s", _number(result["tokens"]["per_s"])))
    if latency:
        tiles += [(f"latency {name}, ms", _number(latency[name])) for name in ("p50", "p95", "p99")]
    if first:
        tiles.append(("first token p50, ms", _number(first["p50"])))
    requests = result["requests"]
    tiles += [("succeeded", f"{requests['succeeded']:,}"), ("failed", f"{requests['failed']:,}")]
    if requests["not_sent"]:
        tiles.append(("not sent", f"{requests['not_sent']:,}"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles)
    return f'<div class="tiles">{cells}</div>\n'


def _plots(result: dict[str, Any]) -> str:
    course: list[dict[str, Any]] = result["course"]
    interval_s = result["course_interval_s"]
    end_s = max(result["elapsed_s"], interval_s)
    known = [point for point in course if point["succeeded"]]
    known_s = [_middle_s(point, interval_s, end_s) for point in known]
    latency = [Line(name, known_s, [point[f"{name}_ms"] for point in known]) for name in ("p50", "p95", "p99")]
    histogram = [(each["from_ms"], each["to_ms"], each["count"]) for each in result["latency_histogram"]]
    rates = _rates(course, interval_s, end_s, has_failures=result["requests"]["failed"] > 0)
    titles = "Responses per second", "Latency over time, ms", "Number of responses by latency, ms"
    return (
        _plot(titles[0], rates, lines(titles[0], rates, end_s))
        + _plot(titles[1], latency, lines(titles[1], latency, end_s))
        + _plot(titles[2], [], bars(titles[2], histogram))
    )


def _rates(course: list[dict[str, Any]], interval_s: float, end_s: float, has_failures: bool) -> list[Line]:
    """Return responses per second. The last interval is shorter; without its half it says nothing."""
    widths = [min(interval_s, end_s - point["after_s"]) for point in course]
    shown = [each for each in zip(course, widths, strict=True) if each[1] >= interval_s / 2]
    seconds = [_middle_s(point, interval_s, end_s) for point, _ in shown]
    names = ("succeeded", "failed") if has_failures else ("succeeded",)
    return [Line(name, seconds, [point[name] / width for point, width in shown]) for name in names]


def _middle_s(point: dict[str, Any], interval_s: float, end_s: float) -> float:
    after_s: float = point["after_s"]
    return (after_s + min(end_s, after_s + interval_s)) / 2


def _plot(title: str, keys: Sequence[Line], drawn: str) -> str:
    names = "".join(f'<span class="key k{index}">{escape(key.name)}</span>' for index, key in enumerate(keys))
    return f"<h2>{escape(title)}</h2>\n" + (f"<p>{names}</p>\n" if len(keys) > 1 else "") + f"{drawn}\n"


def _durations(result: dict[str, Any]) -> str:
    rows = [
        ("latency", result["latency_ms"]),
        ("time to first token", result["time_to_first_token_ms"]),
        ("time per token", result["time_per_token_ms"]),
        *((f"server: {name}", each) for name, each in result["server_timing_ms"].items() if each["max"]),
    ]
    cells = [[name, *(_number(each[key]) for key in _QUANTILES)] for name, each in rows if each]
    return _table("Durations, ms", ["", *(name.replace("_", ".") for name in _QUANTILES)], cells)


def _failures(result: dict[str, Any]) -> str:
    rows = [
        [each["code"], str(each["status"] or "-"), f"{each['count']:,}", each["message"]] for each in result["failures"]
    ]
    return _table("Failures", ["code", "status", "requests", "first message"], rows)


def _generator(result: dict[str, Any]) -> str:
    generator, connections = result["load_generator"], result["connections"]
    lateness = generator["timer_lateness_ms"]
    rows = [
        ["CPU, part of a core", f"{generator['cpu_part_of_a_core']:.0%}"],
        ["mean lateness of timers, ms", _number(lateness["mean"]) if lateness else "-"],
        ["may have been the limit", "yes" if generator["is_limit"] else "no"],
        *([f"connections {name.replace('_', ' ')}", f"{count:,}"] for name, count in connections.items()),
    ]
    return _table("Load generator", ["", ""], rows)


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    heads = "<tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>" if any(head) else ""
    lines_ = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f'<h2>{escape(title)}</h2>\n<div class="wide"><table>{heads}{lines_}</table></div>\n'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
