"""A server that counts the Python calls of requests: `python -m tests.support.counted_server CONFIG PORT [KEY]`.

Writes a line of JSON for each case, {"case", "calls", "files", "walk"}, and stops. `walk`: the files in the order of
their first calls. With a key there is one case, tensors that present it. Calls are those of functions of the project
on all threads, with each resumption of a coroutine. The counts do not depend on the speed of the machine.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
CONNECTIONS = 32
_PACKAGES = tuple(f"{ROOT / package}{os.sep}" for package in ("app", "frameworks", "memory"))
# Loops of the server that run without requests.
_BACKGROUND = tuple(
    str(ROOT / path)
    for path in (
        "app/observability/loop_lag.py",
        "app/observability/integrity.py",
        "app/observability/process_use.py",
        "app/observability/progress.py",
        "app/admin/monitoring/sampling.py",
        "app/admin/monitoring/sample_cells.py",
        "app/auth/key_store.py",
        "app/auth/store.py",
        "app/auth/key_file.py",
        "frameworks/core/progress.py",
    )
)
_LOOP = str(ROOT / "app/server/process.py")
"""Its functions run the event loop, and with it all others."""
_WARM_UPS, _ROUNDS = 4, 8
_REPEATS = 5
# Behind the last byte of a response, the server still records it.
_SETTLE_S = 0.3


class CallCounter:
    """Count calls by file while `is_on`. `profile` is a profile function of sys and threading."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.is_on = False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on or event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGES) or name == _LOOP:
            return
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_filename in _BACKGROUND:
                return
            caller = caller.f_back
        self.by_file[name] += 1

    def stop(self) -> Counter[str]:
        """Return the calls since the last stop."""
        time.sleep(_SETTLE_S)
        self.is_on = False
        counted, self.by_file = self.by_file, Counter()
        return counted


def _message(path: str, content_type: str, body: bytes, connection: str, key: str | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n"
    if key is not None:
        head += f"authorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: {connection}\r\n\r\n".encode() + body


def _ask(port: int, message: bytes) -> None:
    """Send one request on a connection of its own, and read the response to its end."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(message)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    assert reply.startswith(b"HTTP/1.1 200"), reply[:300]


def _count_one(counter: CallCounter, port: int, message: bytes) -> Counter[str]:
    """Return the fewest calls of several requests, one at a time: steps that end together are delivered together."""
    for _ in range(_WARM_UPS):
        _ask(port, message)
    counts = []
    for _ in range(_REPEATS):
        counter.stop()
        counter.is_on = True
        _ask(port, message)
        counts.append(counter.stop())
    return min(counts, key=Counter.total)


def _count_kept_open(counter: CallCounter, port: int, message: bytes) -> tuple[float, list[str]]:
    """Return calls and files of a request, on connections that stay open, each with a request in flight.

    The fewest calls of several repeats: a busy machine delays requests, and splits their batches.
    """
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    counts = []
    for _ in range(_REPEATS):
        counter.stop()
        for number in range(_WARM_UPS + _ROUNDS):
            counter.is_on = number >= _WARM_UPS
            for connection in connections:
                connection.sendall(message)
            for connection in connections:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        counts.append(counter.stop())
    counted, requests = min(counts, key=Counter.total), CONNECTIONS * _ROUNDS
    for connection in connections:
        connection.close()
    # A file of a batch has fewer calls than there are requests.
    return counted.total() / requests, [file for file, calls in counted.items() if calls > requests / 20]


def _report(case: str, calls: float, files: Iterable[str]) -> None:
    walk = [Path(file).relative_to(ROOT).as_posix() for file in files]
    print(json.dumps({"case": case, "calls": calls, "files": len(walk), "walk": walk}), flush=True)


def _wait_until_ready(port: int, key: str | None) -> None:
    """Return when all models are loaded and the kernels are compiled."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    while True:
        time.sleep(0.1)
        try:
            states = [
                httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers).json() for path in ("/health", "/models")
            ]
        except (OSError, httpx.HTTPError):
            continue
        if states[0]["status"] == "healthy" and not any(each.get("awaits_kernels") for each in states[1]["models"]):
            return


def _drive(counter: CallCounter, port: int, image: bytes, key: str | None) -> None:
    _wait_until_ready(port, key)
    tensor = json.dumps({"model_name": "digits", "input_data": [0.5] * 64}).encode()
    message = _message("/infer", "application/json", tensor, "keep-alive", key)
    _report("tensor" if key is None else "key", *_count_kept_open(counter, port, message))
    messages = [{"role": "user", "content": "def f(x):"}]
    chat = json.dumps({"model": "tiny-llama", "stream": True, "max_tokens": 8, "messages": messages}).encode()
    cases = {
        "chat": _message("/v1/chat/completions", "application/json", chat, "close"),
        "image": _message("/models/shapes/infer", "image/jpeg", image, "close"),
    }
    for case, message in cases.items() if key is None else ():
        counted = _count_one(counter, port, message)
        _report(case, counted.total(), counted)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve the file of configuration while a thread sends the requests; the image arrives on stdin as base64."""
    from app.cli.commands import main as run

    config, port, key = (*sys.argv[1:], None)[:3]
    assert config is not None
    assert port is not None
    counter = CallCounter()
    image = b64decode(sys.stdin.readline())
    threading.Thread(target=_drive, args=(counter, int(port), image, key), daemon=True).start()
    threading.setprofile(counter.profile)
    sys.setprofile(counter.profile)
    sys.argv = ["roundhouse", "serve", "--config", config]
    return run()


if __name__ == "__main__":
    sys.exit(main())
