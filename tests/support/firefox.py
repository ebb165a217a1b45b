"""A page in headless Firefox, which is driven by WebDriver BiDi over a WebSocket."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")

WAIT_S = 120.0
"""How long a condition may take. Only an error takes as long, on any machine."""
_STEP_S = 0.05
_LISTENING = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
_PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
}
_DARK = "layout.css.prefers-color-scheme.content-override"


class Firefox:
    """One tab. `errors`: texts of console errors and of exceptions that no code of the page has caught."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self._context = self.call("browsingContext.create", type="tab")["context"]

    def set_width(self, width: int) -> None:
        """Set the width of the page in pixels."""
        self.call("browsingContext.setViewport", context=self._context, viewport={"width": width, "height": 900})

    def load(self, url: str) -> None:
        """Load a page and wait until it and its files are loaded."""
        self.call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise. It must have a form in JSON."""
        answer = self.call(
            "script.evaluate",
            expression=f"Promise.resolve({expression}).then(value => JSON.stringify(value))",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        value = answer["result"].get("value")
        return None if value is None else json.loads(value)

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression once it is true. Fails with the text of the page after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while not (value := self.evaluate(expression)):
            if time.monotonic() > end:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"expected {expression}, got the page: {text}; errors: {self.errors}")
            time.sleep(_STEP_S)
        return value

    def draw(self, points: Sequence[tuple[int, int]]) -> None:
        """Move the mouse with its button pressed from point to point, in pixels of the window."""
        (x, y), *others = points
        moves: list[dict[str, Any]] = [{"type": "pointerMove", "x": x, "y": y}, {"type": "pointerDown", "button": 0}]
        moves += [{"type": "pointerMove", "x": x, "y": y, "duration": 50} for x, y in others]
        moves.append({"type": "pointerUp", "button": 0})
        self._act({"type": "pointer", "id": "mouse", "actions": moves})

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=WAIT_S))
            if message.get("id") == self._number:
                assert message["type"] == "success", message
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.errors.append(message["params"]["text"])

    def _act(self, source: dict[str, Any]) -> None:
        self.call("input.performActions", context=self._context, actions=[source])


@contextmanager
def firefox(profile: Path, *, is_dark: bool = False) -> Iterator[Firefox]:
    """Run a browser without a window, with one tab. `profile`: an empty folder for its files."""
    assert FIREFOX is not None
    preferences = {**_PREFERENCES, _DARK: 0 if is_dark else 1}
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items()]
    (profile / "user.js").write_text("".join(lines))
    output = profile / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [FIREFOX, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=_environment(profile),
        )
    try:
        with connect(f"{_listening_url(process, output)}/session", max_size=None, open_timeout=WAIT_S) as connection:
            yield Firefox(connection)
    finally:
        process.kill()
        process.wait()


def _listening_url(process: subprocess.Popen[bytes], output: Path) -> str:
    """Return the address that the browser has written."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and process.poll() is None:
        if found := _LISTENING.search(output.read_text()):
            return found[1]
        time.sleep(_STEP_S)
    raise AssertionError(f"firefox: expected an address of WebDriver BiDi, got {output.read_text()}")


def _environment(profile: Path) -> dict[str, str]:
    """Return an environment in which the browser keeps all files below its profile."""
    return {"HOME": str(profile), "PATH": "/usr/bin:/bin", "MOZ_CRASHREPORTER_DISABLE": "1", "LANG": "C.UTF-8"}
