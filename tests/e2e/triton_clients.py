"""Triton's own clients for threads and for asyncio, behind one interface, and their tensors and errors."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from frameworks.types import Array
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


@contextmanager
def grpc_channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def http_tensor(name: str, array: Array, binary: bool = True) -> tritonclient.http.InferInput:
    tensor = tritonclient.http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def grpc_tensor(name: str, array: Any, datatype: str) -> Any:
    given = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def string_array(*texts: str) -> Any:
    array = np.empty(len(texts), dtype=object)
    array[:] = [text.encode() for text in texts]
    return array


def model_states(client: Any, model: str) -> dict[str, str]:
    """Return the state of each version, from the index of the repository."""
    return {each["version"]: each["state"] for each in client.get_model_repository_index() if each["name"] == model}


def refusal(status: int | str, *words: str) -> Any:
    """Expect the error that Triton's client raises, with this status and all these words.

    `status`: a number of HTTP or the name of a gRPC status code.
    """
    code = status if isinstance(status, int) else rf"StatusCode\.{status}"
    pattern = rf"(?s)^\[{code}\]" + "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(InferenceServerException, match=pattern)
