"""The files that share a server run in one process."""

import pytest

from tests.support.scheduling import SHARED_SERVER, scope_of, shares_server


def test_files_of_shared_server_are_found(request: pytest.FixtureRequest) -> None:
    """Those of this run. Without other files there are none."""
    expected: dict[str, bool] = {}
    for item in request.session.items:
        assert isinstance(item, pytest.Function)
        file = item.nodeid.split("::")[0]
        found = item._fixtureinfo.name2fixturedefs.get("server", ())
        uses = file.startswith("tests/e2e/") and any(each.baseid == "tests/e2e" for each in found[-1:])
        expected[file] = expected.get(file, False) or uses
    assert {file: shares_server(file) for file in expected} == expected


def test_shared_server_has_one_scope() -> None:
    scopes = [scope_of(f"tests/e2e/{name}.py") for name in ("test_tensors", "test_text", "test_tls")]
    assert scopes == [SHARED_SERVER, SHARED_SERVER, "tests/e2e/test_tls.py"]
