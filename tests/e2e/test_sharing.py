"""The files that share a server run in one process."""

import pytest

from tests.support.scheduling import SHARED_SERVER, scope_of, shares_server


def test_file_of_shared_server_is_found() -> None:
    assert shares_server("tests/e2e/test_tensors.py")


@pytest.mark.parametrize("file", ["tests/e2e/test_sharing.py", "tests/e2e/test_tls.py", "tests/web/test_views.py"])
def test_other_files_share_no_server(file: str) -> None:
    assert not shares_server(file)


def test_shared_server_has_one_scope() -> None:
    scopes = [scope_of(f"tests/e2e/{name}.py") for name in ("test_tensors", "test_text", "test_tls")]
    assert scopes == [SHARED_SERVER, SHARED_SERVER, "tests/e2e/test_tls.py"]
