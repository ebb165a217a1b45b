"""Keys and the log level are read again at SIGHUP."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from app.auth.key_store import KeyStore
from app.config import load_settings
from app.observability.background import background_task
from app.observability.logs.logs import set_log_level
from app.server.reload import HangupReload, Reload
from tests.support.keyring import make_key, write_keys

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
KEY = make_key("search")


@pytest.fixture(autouse=True)
def signals_and_level() -> Iterator[None]:
    """Restore the handler of the signal, and the level of the log."""
    before, config = signal.getsignal(signal.SIGHUP), structlog.get_config()
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        set_log_level("info")
        structlog.configure(**config)


class Hangup:
    """The reload of a server with a config file. `told`: the level after each signal."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config.toml"
        self.write('level = "warning"')
        loaded = load_settings(self.config, {})
        self.keys = KeyStore(folder / "keys.toml", loaded.settings.auth)
        self.keys.load()
        self.told: list[str] = []
        self.reload = Reload("warning", self.keys, None)
        self.hangup = HangupReload(loaded, self.reload, self._tell)

    def write(self, line: str) -> None:
        self.config.write_text(f"[logging]\n{line}\n", encoding="utf-8")

    def _tell(self, level: str) -> None:
        self.told.append(level)
        self._reloaded.set()

    def run(self, act: Callable[[], None]) -> None:
        """Send the signal after `act`, and wait until all was read."""

        async def run() -> None:
            self._reloaded = asyncio.Event()
            async with background_task(self.hangup.run()):
                await asyncio.sleep(0)
                act()
                os.kill(os.getpid(), signal.SIGHUP)
                async with asyncio.timeout(60):
                    await self._reloaded.wait()

        asyncio.run(run())


def test_sighup_changes_log_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Hangup(tmp_path)
    set_log_level("warning")
    server.run(lambda: server.write('level = "debug"'))
    assert (server.told, server.reload.level) == (["debug"], "debug")
    structlog.get_logger("test").debug("shown from now on")
    assert "shown from now on" in capsys.readouterr().out


def test_sighup_reads_keys_at_once(tmp_path: Path) -> None:
    server = Hangup(tmp_path)
    server.run(lambda: write_keys(tmp_path / "keys.toml", KEY))
    assert server.keys.find(KEY.key.key_id) is not None
    assert server.keys.reloads["loaded"] == 1


def test_sighup_with_broken_config_keeps_level(tmp_path: Path) -> None:
    server = Hangup(tmp_path)
    with structlog.testing.capture_logs() as logged:
        server.run(lambda: server.write('level = "loud"'))
    assert (server.told, server.reload.level) == (["warning"], "warning")
    (error,) = [line for line in logged if line["log_level"] == "error"]
    assert error["event"] == "config not loaded; logging.level stays"
    assert 'logging.level: expected one of "debug"' in error["reason"]


def test_sighup_before_loop_is_remembered(tmp_path: Path) -> None:
    server = Hangup(tmp_path)
    os.kill(os.getpid(), signal.SIGHUP)
    server.run(lambda: None)
    # The loop has ended: the signal is only noted.
    os.kill(os.getpid(), signal.SIGHUP)
