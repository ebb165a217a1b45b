"""Distribute the test files among the processes of pytest-xdist."""

import ast
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
SHARED_SERVER = "files with the shared server"
SHARED_CLUSTER = "files with the Ray cluster"
RAY_MARK = "pytest.mark.ray"


class SharedServerScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Run whole files in one process, and all files that share the server of tests/e2e/conftest.py in the same one.

    Each process that runs such a file starts that server, which takes 8 to 11 s of CPU time. The files that share the
    Ray cluster of tests/conftest.py also run in one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid))


def scope_of(file: str) -> str:
    """Return the name of the tests that run in one process with those of this file."""
    if shares_cluster(file):
        return SHARED_CLUSTER
    return SHARED_SERVER if shares_server(file) else file


@cache
def shares_cluster(file: str) -> bool:
    """Return whether tests of a file below the root have the marker `ray`."""
    return RAY_MARK in (ROOT / file).read_text(encoding="utf-8")


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
