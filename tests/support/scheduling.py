"""Distribute the test files among the processes of pytest-xdist."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
SHARED_SERVER = "files with the shared server"
SHARED_CLUSTER = "files with the Ray cluster"
SHARED_SITE = "files with the page"
SHARED_PLAYGROUND = "files with the playground"
RAY_MARK = "pytest.mark.ray"


class CrashTolerantScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Run whole files in one process, and go on after a process that crashed.

    pytest-xdist runs the test that crashed its process again in the next process. It also hands that process the files
    that are done, and waits for their tests for ever.
    """

    def remove_node(self, node: Any) -> str | None:
        """Return the test that ran while the process crashed, if it has crashed, and queue those that follow it."""
        units: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        pending = [name for unit in units.values() for name, is_done in unit.items() if not is_done]
        if not pending:
            return None
        crashed = pending[0]
        for scope, unit in units.items():
            rest = {name: False for name, is_done in unit.items() if not is_done and name != crashed}
            if rest:
                self.workqueue[scope] = rest
        for each in self.assigned_work:
            self._reschedule(each)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Queue files until the process can run one more test, or tell it that no other follows.

        A process runs a test only when it knows the next one.
        """
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
        if not self.workqueue and not node.shutting_down:
            node.shutdown()


class SharedServerScheduling(CrashTolerantScheduling):
    """Run whole files in one process, and all files that share the server of tests/e2e/conftest.py in the same one.

    Each process that runs such a file starts that server, which takes 8 to 11 s of CPU time. The files that share the
    Ray cluster of tests/conftest.py also run in one process. The files of tests/web run in two: those with the
    playground, whose server takes 30 s, and the others.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid))


def scope_of(file: str) -> str:
    """Return the name of the tests that run in one process with those of this file."""
    if shares_cluster(file):
        return SHARED_CLUSTER
    if site := site_of(file):
        return site
    return SHARED_SERVER if shares_server(file) else file


@cache
def shares_cluster(file: str) -> bool:
    """Return whether tests of a file below the root have the marker `ray`."""
    return RAY_MARK in (ROOT / file).read_text(encoding="utf-8")


@cache
def site_of(file: str) -> str | None:
    """Return the name of the files of tests/web that share a server and a browser with this file of tests/web."""
    if not file.startswith("tests/web/"):
        return None
    has_playground = "playground: RunningServer" in (ROOT / file).read_text(encoding="utf-8")
    return SHARED_PLAYGROUND if has_playground else SHARED_SITE


@cache
def shares_server(file: str) -> bool:
    """Return whether tests or fixtures of a file below the root use the shared server, which is named `server`."""
    if not file.startswith("tests/e2e/"):
        return False
    shares = False
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            is_fixture = any("fixture" in ast.unparse(each) for each in node.decorator_list)
            if is_fixture and node.name == "server":
                return False
            is_test = node.name.startswith("test_")
            shares |= (is_fixture or is_test) and any(each.arg == "server" for each in node.args.args)
    return shares
