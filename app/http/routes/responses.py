"""Responses of FastAPI's routes."""

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class AsgiResponse(Response):
    """A response that an ASGI application sends."""

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


def json_response(content: object, status: int = 200) -> Response:
    """Return the response of a route: JSON written by orjson."""
    return Response(orjson.dumps(content), status, media_type="application/json")
