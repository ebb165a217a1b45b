"""Why no Ray cluster was reached."""

import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import ray
from ray.exceptions import AuthenticationError

from extensions.ray.cluster import CannotConnect, connect

Refuse = Callable[[Exception, bytes], None]
WRONG = b"RPC error: InvalidAuthToken: Authentication token is missing or incorrect\n"


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let `ray.init` print and raise."""

    def set_refusal(error: Exception, printed: bytes) -> None:
        def init(**_: Any) -> NoReturn:
            os.write(2, printed)
            raise error

        monkeypatch.setattr(ray, "init", init)

    return set_refusal


@pytest.mark.parametrize(
    ("error", "printed", "mode", "message"),
    [
        (ConnectionError("failed"), b"lines\n", "", "address: expected a Ray cluster at a:1, got none (failed)"),
        (Exception("it timed out"), b"", "", "address: expected a Ray cluster at a:1, got none (it timed out)"),
        (ConnectionError("failed"), WRONG, "", "RAY_AUTH_TOKEN: expected the token of .* a:1, got none; "),
        (ConnectionError("failed"), WRONG, "token", "RAY_AUTH_TOKEN: expected .* a:1, got another one; set "),
        (AuthenticationError("x"), b"", "token", "RAY_AUTH_TOKEN: expected the token of the .* at a:1, got none; set "),
    ],
)  # fmt: skip
def test_connect_refused_names_reason(
    error: Exception,
    printed: bytes,
    mode: str,
    message: str,
    refuse: Refuse,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    refuse(error, printed)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(CannotConnect, match=f"^{message.replace('(', '.').replace(')', '.')}"):
        connect("address", "a:1")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "auto"])
def test_address_without_listener_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> NoReturn:
        raise AssertionError("Ray is not asked")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(
        CannotConnect, match=r"^address: expected a Ray cluster at here, got no connection .*; start it"
    ):
        connect("address", "here", address=address)
