"""Collect files without their imports; a worker of pytest-xdist imports a file when the file is its next one.

Each worker of pytest-xdist collects all tests. For this it imports every test file and all their libraries, which takes
30 s of CPU time, and 60 s without compiled files. With this plugin a worker collects one item for each file. The run of
that item collects and runs the tests of the file. Reports, markers and fixtures are those of the tests.

Usage: pytest -p tests.support.file_items --dist loadfile --numprocesses N
"""

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest


class FileItem(pytest.Item):
    """All tests of a file. Its node id is that of the file."""

    def runtest(self) -> None:
        """Not called: see `pytest_runtest_protocol`."""
        raise NotImplementedError


class UnreadFile(pytest.File):
    """A file that is not imported."""

    def collect(self) -> Iterator[pytest.Item]:
        item: FileItem = FileItem.from_parent(self, name=self.path.name, nodeid=self.nodeid)
        # Each test has its own limit.
        item.add_marker(pytest.mark.timeout(0))
        yield item


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> UnreadFile | None:
    """Put off the import of a file, in a worker."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    return UnreadFile.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Keep files from the hooks that select tests: these run again for the tests of each file."""
    files = [item for item in items if isinstance(item, FileItem)]
    if not files:
        return (yield)
    items.clear()
    yield
    items[:] = files


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Collect and run the tests of a file."""
    if not isinstance(item, FileItem):
        return None
    session = item.session
    tests = _tests_of(item)
    position = session.items.index(item)
    try:
        for test, following in zip(tests, [*tests[1:], nextitem][: len(tests)], strict=True):
            # The worker checks that a report belongs to the item at this position.
            session.items[position] = test
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
    finally:
        session.items[position] = item
    return True


def _tests_of(file: FileItem) -> Sequence[pytest.Item]:
    """Import a file; return its selected tests. A failed import is reported as an error of the collection."""
    assert file.parent is not None
    module = pytest.Module.from_parent(file.parent.parent, path=file.path)
    # As in tests/conftest.py: without the garbage collector.
    gc.disable()
    try:
        tests = list(file.session.genitems(module))
    finally:
        gc.enable()
        gc.freeze()
    file.config.hook.pytest_collection_modifyitems(session=file.session, config=file.config, items=tests)
    return tests
