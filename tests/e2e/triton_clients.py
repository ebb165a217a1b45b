"""Triton's own clients for threads and for asyncio, behind one interface."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from tests.e2e.server import RunningServer

KINDS = ("http", "http.aio")
GRPC_KINDS = ("grpc", "grpc.aio")


@contextmanager
def triton_client(server: RunningServer, kind: str) -> Iterator[Any]:
    """`kind`: one of KINDS or GRPC_KINDS."""
    transport = tritonclient.grpc if kind in GRPC_KINDS else tritonclient.http
    address = f"127.0.0.1:{server.grpc_port if kind in GRPC_KINDS else server.port}"
    if not kind.endswith(".aio"):
        with transport.InferenceServerClient(address) as client:
            yield client
        return

    async def open_client() -> Any:
        return transport.aio.InferenceServerClient(address)

    with asyncio.Runner() as runner:
        client = runner.run(open_client())
        try:
            yield _Waiting(client, runner)
        finally:
            runner.run(client.close())


class _Waiting:
    """Run the client's coroutines to their end."""

    def __init__(self, client: Any, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client, name)
        return lambda *given, **named: self._runner.run(call(*given, **named))
