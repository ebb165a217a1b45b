"""Serve hostile clients, and check that nothing of them is left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from app.grpc.transport.server import GrpcServer
from tests.app.grpc.transport.serving import serving, unary_client
from tests.support.loops import soon

Ask = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


@asynccontextmanager
async def attacked(**options: Any) -> AsyncIterator[tuple[GrpcServer, str, Ask]]:
    """Serve; yield the server, its address and another client, which is answered at the end too.

    Then nothing of the hostile clients is left.
    """
    async with serving(**options) as (server, address):
        async with unary_client(address) as ask:
            assert await ask(b"first") == b"first"
            yield server, address, ask
            assert await ask(b"last") == b"last"
        await is_clean(server)


async def is_clean(server: GrpcServer) -> None:
    await soon(lambda: not (server._calls.num_open or server._calls.tasks or server._connections))
