"""End what the tests of a folder share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def closed_after(folder: Path, close: Callable[[], None]) -> Callable[[pytest.Item | None], Iterator[None]]:
    """Return the hook `pytest_runtest_teardown` of a folder, which calls `close` before tests of other folders run."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if nextitem is None or folder not in nextitem.path.parents:
                close()

    return pytest_runtest_teardown
