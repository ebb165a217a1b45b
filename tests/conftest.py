"""Options and limits of every test process: examples of property tests, nightly tests, threads, order of files."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

# Set before torch is imported. Threads which spin while they wait take the cores from the other workers and servers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if _workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

# A shell that starts the tests in the background makes them ignore Ctrl-C, and the commands that they start inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import structlog
from hypothesis import HealthCheck, settings

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

NIGHTLY_EXAMPLES = 25
"""The nightly run tries this many times as many examples of a property as the default run, from a random seed."""

_SEARCHED_MARKS = ("isa", "gpu")
"""The Makefile and the GPU kit find the files of these tests by the text of the marker."""

_NIGHTLY_REASON = "nightly: make test-all runs it"
# Files that wait for processes run first, so that no worker is left alone with them in the end.
_SLOW = ("tests/e2e/", "tests/docker/", "tests/app/embedded/", "tests/app/ray/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run nightly tests too, and more examples of properties")


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip nightly tests unless --nightly is given, and sort slow files first where workers share the files.

    Raises UsageError for a marker that is not written as text in its file.
    """
    check_marks_as_text(items)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=_place)
    if config.getoption("--nightly"):
        _try_more_examples(items)
        return
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason=_NIGHTLY_REASON))


def check_marks_as_text(items: Sequence[pytest.Item]) -> None:
    """Raise UsageError for tests with the marker `isa` or `gpu` whose file does not contain its text."""
    marked = {(item.path, mark) for item in items for mark in _SEARCHED_MARKS if item.get_closest_marker(mark)}
    for file, mark in sorted(marked):
        if f"pytest.mark.{mark}" not in file.read_text(encoding="utf-8"):
            raise pytest.UsageError(f"{file}: write the marker as pytest.mark.{mark}, by which the file is found")


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
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Keep the files together that share a server."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import SharedServerScheduling

    return SharedServerScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Name the test at once, for a run that is ended before its summary."""
    print(f"\nits process crashed or hung: {crashitem}", file=sys.__stdout__, flush=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the run left out."""
    if config.getoption("--nightly"):
        return
    skipped: Sequence[object] = terminalreporter.stats.get("skipped", [])
    count = sum(_NIGHTLY_REASON in str(getattr(report, "longrepr", "")) for report in skipped)
    if count:
        terminalreporter.write_line(
            f"left out: {count} nightly tests, and {NIGHTLY_EXAMPLES} times the examples of properties; "
            "`make test-all` runs them"
        )


def _place(item: pytest.Item) -> int:
    """Return the place of a test in the order: files that share a server or a cluster, other slow files, the rest.

    Files that share run in one process, for minutes.
    """
    from tests.support.scheduling import scope_of

    file = item.nodeid.partition("::")[0]
    if scope_of(file) != file:
        return 0
    return 1 if file.startswith(_SLOW) else 2


def _try_more_examples(items: list[pytest.Item]) -> None:
    """Multiply the examples of each property and state machine, once for each function or class."""
    done: set[int] = set()
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        for owner, name in ((function, "_hypothesis_internal_use_settings"), (getattr(item, "cls", None), "settings")):
            given = getattr(owner, name, None)
            if isinstance(given, settings) and id(owner) not in done:
                done.add(id(owner))
                examples = given.max_examples * NIGHTLY_EXAMPLES
                setattr(owner, name, settings(given, max_examples=examples, derandomize=False))
