"""Read streamed completions with the time of each piece."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from tools.bench.shared.load import request_of

_LIMIT_S = 300.0
_EVENT = b"data: {"


@dataclass(slots=True)
class Streamed:
    """One stream. `pieces_s`: time.perf_counter at each piece; with the models of the bench a piece is a token."""

    sent_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list)
    is_over: bool = False

    @property
    def first_s(self) -> float:
        """Return the seconds from the request to the first piece."""
        return self.pieces_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Return the seconds between neighbouring pieces."""
        return [after - before for before, after in zip(self.pieces_s, self.pieces_s[1:], strict=False)]


def completion(model: str, prompt: str, max_tokens: int, **fields: object) -> bytes:
    """Return a greedy POST to /v1/completions, whole or (`stream=True`) in pieces."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return request_of("/v1/completions", orjson.dumps(body | fields))


async def stream(port: int, request: bytes, into: Streamed, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Read a stream to its end, or close its connection when `goes_on` returns false."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        into.sent_s = time.perf_counter()
        writer.write(request)
        async with asyncio.timeout(_LIMIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if int(head[9:12]) != 200:
                raise RuntimeError(f"a stream was answered {head[9:12].decode()}")
            while goes_on() and (content := await _chunk(reader)):
                now_s = time.perf_counter()
                if b'"error"' in content:
                    raise RuntimeError(f"a stream ended with {content.decode()}")
                into.pieces_s += [now_s] * content.count(_EVENT)
            into.is_over = True
    finally:
        writer.close()


async def streams_together(port: int, requests: Sequence[bytes]) -> list[Streamed]:
    """Read all streams at once to their ends."""
    streamed = [Streamed() for _ in requests]
    async with asyncio.TaskGroup() as group:
        for request, into in zip(requests, streamed, strict=True):
            group.create_task(stream(port, request, into))
    return streamed


def rate_while_all_ran(streamed: Sequence[Streamed]) -> float:
    """Return the pieces per second of all streams while all of them run."""
    from_s = max(each.pieces_s[0] for each in streamed)
    to_s = min(each.pieces_s[-1] for each in streamed)
    if to_s <= from_s:
        raise RuntimeError("the streams did not run at the same time")
    pieces = sum(from_s < at_s <= to_s for each in streamed for at_s in each.pieces_s)
    return pieces / (to_s - from_s)


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """Return the next chunk of a chunked body, empty at its end."""
    size = int(await reader.readline(), 16)
    return (await reader.readexactly(size + 2))[:size]
