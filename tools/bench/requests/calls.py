"""Count the function calls and files of one request in steady state: figures that do not depend on the machine."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tests.support.kernel_device  # noqa: F401 (sets a variable that Triton reads)
from extensions.load_test.connection import RequestFailure
from tools.bench.shared.load import Connection, request_of
from tools.bench.shared.servers import ROOT, free_port
from tools.bench.shared.table import Row

_TENSOR_CONNECTIONS = 32
_TENSOR_REQUESTS = 1024
_CHAT_REQUESTS = 32
_CHAT_TOKENS = 16
_TEXTS = 16
_TEXT_TOKENS = 64
# A file with fewer calls than this per request belongs to the background, such as the monitor of the event loop.
_LEAST_CALLS_A_REQUEST = 1 / 32
_START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Counts:
    """Calls per unit: of functions of this project, of all Python functions, of C functions; and files of ours."""

    own: float
    python: float
    c: float
    files: int


@dataclass(frozen=True, slots=True)
class _CountedServer:
    process: subprocess.Popen[str]
    port: int

    def count(self, load: Callable[[int], Coroutine[Any, Any, None]], units: int) -> _Counts:
        """Run the load twice, count the second run, and divide by `units`."""
        asyncio.run(load(self.port))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._write_line()
        self.process.stdout.readline()
        asyncio.run(load(self.port))
        self._write_line()
        counts = json.loads(self.process.stdout.readline())
        files = sum(calls >= units * _LEAST_CALLS_A_REQUEST for calls in counts["files"].values())
        return _Counts(counts["own_calls"] / units, counts["python_calls"] / units, counts["c_calls"] / units, files)

    def _write_line(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def measure_calls(folder: Path, models: Path) -> list[Row]:
    """Return the rows of a tiny tensor request, of a chat request, and of steps of 16 running texts; and what a step
    launches on a GPU.
    """
    # Importing it needs Triton.
    from tests.support.meta_step import DECODES, MetaStep

    config = folder / "calls.toml"
    with _counted_server(config, models) as server:
        tensor = server.count(_send_tensors, _TENSOR_REQUESTS)
        chat = server.count(_send_chats, _CHAT_REQUESTS)
        token = server.count(_send_texts, _TEXTS * _TEXT_TOKENS)
    one, two = (MetaStep("llama", layers).launches(DECODES) for layers in (1, 2))
    return [
        Row(
            "launches of a decode step on CUDA, each layer of a Llama; the others of a step",
            f"{len(two) - len(one)}; {2 * len(one) - len(two)}",
            "≤ 9",
        ),
        Row(
            f"calls of a tensor request of 64 floats, {_TENSOR_CONNECTIONS} connections",
            f"{tensor.own:.0f} ours, {tensor.python:.0f} Python, {tensor.c:.0f} C; {tensor.files} files",
            "≤ 60 ours, ≤ 18 files",
        ),
        Row(
            f"calls of a chat request of {_CHAT_TOKENS} tokens, one connection",
            f"{chat.own:.0f} ours, {chat.python:.0f} Python, {chat.c:.0f} C; {chat.files} files",
        ),
        Row(
            f"calls of a step of {_TEXTS} running texts, streamed",
            f"{token.own * _TEXTS:.0f} ours a step, {token.own:.1f} a token; {token.python * _TEXTS:.0f} Python a step",
        ),
    ]


@contextmanager
def _counted_server(config: Path, models: Path) -> Iterator[_CountedServer]:
    port = free_port()
    config.write_text(
        f'[server]\nport = {port}\ngrpc_port = 0\n[logging]\nrequests = "none"\n'
        f'[[models.onnx_models]]\nname = "tiny"\npath = "{models / "digits"}"\nexecution_providers = ["CPU"]\n'
        f'[[models.torch_models]]\nname = "chat"\npath = "{models / "tiny-llama"}"\ndevice = "cpu"\n',
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.requests.counted_server", "--config", str(config)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        asyncio.run(asyncio.wait_for(_wait_ready(port), _START_LIMIT_S))
        yield _CountedServer(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _wait_ready(port: int) -> None:
    while True:
        try:
            connection = await Connection.to(port)
            status = await connection.ask(b"GET /health/ready HTTP/1.1\r\nhost: bench\r\n\r\n")
        except (OSError, RequestFailure):
            status = 0
        else:
            connection.close()
        if status == 200:
            return
        await asyncio.sleep(0.1)


async def _send_tensors(port: int) -> None:
    body = json.dumps({"model_name": "tiny", "input_data": [0.5] * 64}).encode()
    each = _TENSOR_REQUESTS // _TENSOR_CONNECTIONS
    await asyncio.gather(*(_send(port, "/infer", body, each) for _ in range(_TENSOR_CONNECTIONS)))


async def _send_chats(port: int) -> None:
    messages = [{"role": "user", "content": "What is a list?"}]
    body = {"model": "chat", "messages": messages, "max_tokens": _CHAT_TOKENS, "ignore_eos": True, "temperature": 0}
    await _send(port, "/v1/chat/completions", json.dumps(body).encode(), _CHAT_REQUESTS)


async def _send_texts(port: int) -> None:
    body = {"model": "chat", "prompt": "The list", "max_tokens": _TEXT_TOKENS, "ignore_eos": True, "stream": True}
    encoded = json.dumps(body).encode()
    await asyncio.gather(*(_send(port, "/v1/completions", encoded, 1) for _ in range(_TEXTS)))


async def _send(port: int, path: str, body: bytes, requests: int) -> None:
    """Send the same request several times over one connection. Raises RuntimeError unless each answer is 200."""
    connection = await Connection.to(port)
    for _ in range(requests):
        if (status := await connection.ask(request_of(path, body))) != 200:
            raise RuntimeError(f"{path} answered {status} {connection.body[:100]!r}")
    connection.close()
