"""A page in headless Chromium, which is driven by its DevTools protocol over two pipes."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium")

_WAIT_S = 120.0
_NO_SECRETS = ("--password-store=basic", "--use-mock-keychain")
_QUIET = ("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run")
# The browser reads orders from descriptor 3, and writes answers to descriptor 4.
_PLACE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab. `events`: what the browser has reported, in order."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders = orders
        self._answers = answers
        self._received: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def load(self, file: Path, width: int, scheme: str) -> None:
        """Load a page from disk in a window of this width. `scheme`: light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=file.as_uri())
        self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events with these names."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        number = self._number
        answer = self._wait(lambda message: message.get("id") == number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _wait(self, is_wanted: Any) -> dict[str, Any]:
        while True:
            message = self._received.get(timeout=_WAIT_S)
            assert message is not None, "the browser has ended"
            if "method" in message:
                self.events.append(message)
            if is_wanted(message):
                return message

    def _read(self) -> None:
        rest = b""
        while part := os.read(self._answers, 65536):
            *messages, rest = (rest + part).split(b"\0")
            for message in messages:
                self._received.put(json.loads(message))
        self._received.put(None)


@contextmanager
def chromium(profile: Path, options: Sequence[str] = ()) -> Iterator[Browser]:
    """Run a browser with one tab. `profile`: an empty folder for its files."""
    assert CHROMIUM is not None
    orders_end, orders = os.pipe()
    answers, answers_end = os.pipe()
    if os.geteuid() == 0:
        options = [*options, "--no-sandbox"]
    arguments = [CHROMIUM, *_QUIET, *_NO_SECRETS, f"--user-data-dir={profile}", "--remote-debugging-pipe", *options]
    process = subprocess.Popen(
        [sys.executable, "-c", _PLACE, str(orders_end), str(answers_end), *arguments],
        pass_fds=(orders_end, answers_end),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(orders_end)
    os.close(answers_end)
    try:
        browser = Browser(orders, answers)
        browser.open_tab()
        yield browser
        browser._session = None
        browser.call("Browser.close")
        process.wait(_WAIT_S)
    finally:
        process.kill()
        process.wait()
        os.close(orders)
        os.close(answers)
