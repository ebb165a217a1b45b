"""uvicorn's floor: the body is read and a constant answered. `python -m tools.bench.peers.no_op PORT`."""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

_Message = MutableMapping[str, Any]
_BODY = b'{"output_data":[0.0]}'


async def application(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """The minimal ASGI application that reads a body."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})


if __name__ == "__main__":
    uvicorn.run(
        application, port=int(sys.argv[1]), loop="uvloop", http="httptools", lifespan="off", access_log=False,
        log_level="error",
    )  # fmt: skip
