"""Options and limits of every test process: examples of properties, nightly tests, threads, groups of tests."""

import gc
import logging
import os
import signal
import socket
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

# Set before torch is imported. Threads which spin while they wait take the cores from the other workers and servers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Set before onnxruntime is imported. Its thread opens sockets, which tests of descriptors would count.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
if _workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

# A shell that starts the tests in the background makes them ignore Ctrl-C, and the commands that they start inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import structlog
from hypothesis import HealthCheck, settings

import tests.support.kernel_device  # noqa: F401 (sets a variable that Triton reads)
from tests.support.compiled_code import keep_compiled_code

keep_compiled_code()

settings.register_profile(
    "roundhouse",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("roundhouse")

_SEARCHED_MARKS = ("isa", "gpu")
"""`make test-cpus` and the GPU kit find the files of these tests by the text of the marker."""

# Groups that take minutes start first, so that no worker is left alone with one in the end.
_SLOW = ("tests/e2e/", "tests/docker/", "tests/app/embedded/", "tests/extensions/ray/", "tests/tools/training/")

_LONGEST_ID = 200
"""Characters or bytes of a parameter that stands in the name of its test."""

_running: dict[str, None] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly too")
    parser.addoption(
        "--examples", type=float, default=1.0, metavar="FACTOR", help="multiply the examples of each property by this"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Send the counts of attempts at once: with Nagle's algorithm each test of a worker waits 44 ms for its own.

    pytest-rerunfailures keeps them in the main process. Sockets inherit the option from the listening one.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: imports and items are kept, and looking through them takes seconds.

    Frozen, they are not looked through later either, when a test collects garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its size and digest: each worker makes, keeps and sends the names of all tests."""
    if not isinstance(val, bytes | str) or len(val) <= _LONGEST_ID:
        return None
    content = val if isinstance(val, bytes) else val.encode("utf-8", "surrogatepass")
    return f"{len(val)}-{zlib.crc32(content):08x}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group the tests of each worker, skip nightly tests without --nightly, and apply --examples.

    Raises UsageError for a marker that is not written as text in its file.
    """
    check_marks_as_text(items)
    group_tests(items)
    if (factor := config.getoption("--examples")) != 1:
        _multiply_examples(items, factor)
    if config.getoption("--nightly"):
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="nightly: make test-nightly runs it"))


def check_marks_as_text(items: Sequence[pytest.Item]) -> None:
    """Raise UsageError for tests with the marker `isa` or `gpu` whose file does not contain its text."""
    marked = {(item.path, mark) for item in items for mark in _SEARCHED_MARKS if item.get_closest_marker(mark)}
    for file, mark in sorted(marked):
        if f"pytest.mark.{mark}" not in file.read_text(encoding="utf-8"):
            raise pytest.UsageError(f"{file}: write the marker as pytest.mark.{mark}, by which the file is found")


def group_tests(items: list[pytest.Item]) -> None:
    """Let one worker run all tests of a file, and all files that share a server, a cluster or a site.

    Each worker that ran such a file would start that server of its own, which takes 8 to 30 s of CPU time. Groups of
    several files are first in the order, then other slow files.
    """
    groups: dict[Path, str] = {}
    for item in items:
        if shared := _shared_fixture(item):
            groups[item.path] = shared
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups.get(item.path, item.nodeid.partition("::")[0])))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (item.path not in groups, not item.nodeid.startswith(_SLOW)))


def _shared_fixture(item: pytest.Item) -> str | None:
    """Return the name of what the test shares with tests of other files: server, ray, playground, site or None."""
    if item.get_closest_marker("ray"):
        return "ray"
    if item.nodeid.startswith("tests/web/"):
        return "playground" if "playground" in getattr(item, "fixturenames", ()) else "site"
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    is_shared = any(each.baseid == "tests/e2e" for each in definitions.get("server", ())[-1:])
    return "server" if is_shared else None


@pytest.fixture(scope="module", autouse=True)
def _default_logs() -> Iterator[None]:
    """Undo the configuration of logs by commands that ran in this process, so that later files see all lines."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Run one Ray cluster for all tests of this process with the marker `ray`."""
    from tests.support.ray_cluster import local_cluster

    with local_cluster():
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Name the test at once, for a run that is ended before its summary."""
    print(f"\nits process crashed or hung: {crashitem}", file=sys.__stdout__, flush=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Remember a test that runs; with pytest-xdist in the process that distributes the tests."""
    _running[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Forget a test that has ended."""
    _running.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that an interrupted run left, and those that passed only at the second attempt."""
    if _running:
        terminalreporter.write_line("these tests were still running:")
        for name in _running:
            terminalreporter.write_line(f"  {name}")
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", ())}
    unstable = {each.nodeid: each for each in terminalreporter.stats.get("rerun", ()) if each.nodeid in passed}
    if unstable:
        terminalreporter.section("unstable: passed at the second attempt only")
        for name, report in unstable.items():
            crash = getattr(report.longrepr, "reprcrash", None)
            terminalreporter.write_line(f"  {name}: {crash or 'no reason is known'}")
        terminalreporter.write_line("find the cause of each, and append both to tests/unstable.md")


def _multiply_examples(items: list[pytest.Item], factor: float) -> None:
    """Multiply the examples of each property and state machine, once for each function or class."""
    done: set[int] = set()
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        for owner, name in ((function, "_hypothesis_internal_use_settings"), (getattr(item, "cls", None), "settings")):
            given = getattr(owner, name, None)
            if isinstance(given, settings) and id(owner) not in done:
                done.add(id(owner))
                examples = max(1, round(given.max_examples * factor))
                # More examples than by default come from a random seed.
                setattr(owner, name, settings(given, max_examples=examples, derandomize=factor <= 1))
