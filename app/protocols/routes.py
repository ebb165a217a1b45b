"""Which paths are questions to models: each with the format that reads and answers it, found in one look."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pydantic import BaseModel

from app.protocols.codec import Codec, ErrorWriter, Target

_PATHS_REMEMBERED = 1024


class RouteDescription(NamedTuple):
    """What the OpenAPI document says of a route. `streams`: the answer may come as server-sent events. `in_bytes`:
    question and answer may be JSON with bytes behind it.
    """

    tag: str
    summary: str
    question: type[BaseModel]
    answer: type[BaseModel]
    error: type[BaseModel]
    streams: bool = False
    in_bytes: bool = False


class Route(NamedTuple):
    """`path`: in it `{name}` and `{version}` stand for one part each, which the Target is made of. Only POST."""

    path: str
    codec: Codec
    text: RouteDescription


class ResolvedRoute(NamedTuple):
    """Who reads and answers what came to a path, and which model the path names."""

    codec: Codec
    target: Target


class RouteTable:
    """All routes of all formats."""

    def __init__(self, routes: Sequence[Route]) -> None:
        """The first route's format has the word on errors where no other has."""
        self.routes = tuple(routes)
        self._exact = {route.path: ResolvedRoute(route.codec, Target()) for route in routes if "{" not in route.path}
        self._patterns = [(route.path.split("/"), route.codec) for route in routes if "{" in route.path]
        self._error_writers = {_first_part(route.path): route.codec.error_body for route in reversed(routes)}
        # Callers ask on the same paths again and again.
        self.find = lru_cache(maxsize=_PATHS_REMEMBERED)(self._find)
        """The address that a path leads to; None where it is no route's."""

    def error_writer(self, path: str) -> ErrorWriter:
        """Who words the errors of any path: a protocol those of all paths that begin as its own do."""
        return self._error_writers.get(_first_part(path)) or self.routes[0].codec.error_body

    def _find(self, path: str) -> ResolvedRoute | None:
        address = self._exact.get(path)
        if address is not None:
            return address
        parts = path.split("/")
        for pattern, codec in self._patterns:
            named = _named_parts(pattern, parts)
            if named is not None:
                return ResolvedRoute(codec, Target(named.get("name"), named.get("version")))
        return None


def _named_parts(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    """What a path has in the places of a pattern's names; None where it does not fit."""
    if len(pattern) != len(parts):
        return None
    named: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            named[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return named


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
