"""A server that counts the Python calls of requests: `python -m tests.support.counted_server CONFIG PORT`.

Writes a line of JSON for each case, {"case", "calls", "files"}, and stops. Calls are those of functions of the project
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
        "app/observability/progress.py",
        "app/admin/monitoring/sampling.py",
        "app/admin/monitoring/sample_cells.py",
        "app/auth/key_store.py",
        "app/auth/store.py",
        "app/auth/key_file.py",
        "app/server/process.py",
        "frameworks/core/progress.py",
    )
)
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
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        if name.startswith(_PACKAGES) and name not in _BACKGROUND and caller not in _BACKGROUND:
            self.by_file[name] += 1

    def stop(self) -> Counter[str]:
        """Return the calls since the last stop."""
        time.sleep(_SETTLE_S)
        self.is_on = False
        counted, self.by_file = self.by_file, Counter()
        return counted


def _message(path: str, content_type: str, body: bytes, connection: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n"
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


def _count_kept_open(counter: CallCounter, port: int, message: bytes) -> tuple[float, int]:
    """Return calls and files of a request, on connections that stay open, each with a request in flight."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for number in range(_WARM_UPS + _ROUNDS):
        if number == _WARM_UPS:
            counter.stop()
            counter.is_on = True
        for connection in connections:
            connection.sendall(message)
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    counted, requests = counter.stop(), CONNECTIONS * _ROUNDS
    for connection in connections:
        connection.close()
    # A file of a batch has fewer calls than there are requests.
    return counted.total() / requests, sum(calls > requests / 64 for calls in counted.values())


def _drive(counter: CallCounter, port: int, image: bytes) -> None:
    def described(path: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}{path}").json()
        return found

    while True:
        time.sleep(0.1)
        try:
            if described("/health")["status"] == "healthy" and not described("/models/tiny-llama")["awaits_kernels"]:
                break
        except (OSError, httpx.HTTPError):
            continue
    tensor = json.dumps({"model_name": "digits", "input_data": [0.5] * 64}).encode()
    calls, files = _count_kept_open(counter, port, _message("/infer", "application/json", tensor, "keep-alive"))
    print(json.dumps({"case": "tensor", "calls": calls, "files": files}), flush=True)
    messages = [{"role": "user", "content": "def f(x):"}]
    chat = json.dumps({"model": "tiny-llama", "stream": True, "max_tokens": 8, "messages": messages}).encode()
    cases = {
        "chat": _message("/v1/chat/completions", "application/json", chat, "close"),
        "image": _message("/models/shapes/infer", "image/jpeg", image, "close"),
    }
    for case, message in cases.items():
        counted = _count_one(counter, port, message)
        print(json.dumps({"case": case, "calls": counted.total(), "files": len(counted)}), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve the file of configuration while a thread sends the requests; the image arrives on stdin as base64."""
    from app.cli.commands import main as run

    config, port = sys.argv[1:]
    counter = CallCounter()
    image = b64decode(sys.stdin.readline())
    threading.Thread(target=_drive, args=(counter, int(port), image), daemon=True).start()
    threading.setprofile(counter.profile)
    sys.setprofile(counter.profile)
    sys.argv = ["roundhouse", "serve", "--config", config]
    return run()


if __name__ == "__main__":
    sys.exit(main())
