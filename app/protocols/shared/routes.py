"""Find the codec and the model for the path of an inference request."""

import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from app.auth.permissions import HttpAccess, compile_path
from app.inference.contract import NamedRequest
from app.protocols.shared.codec import (
    AnswerContext,
    Codec,
    EncodedResponse,
    Header,
    JsonCodec,
    StreamWriter,
    Target,
)
from app.protocols.shared.errors import ErrorReply

if TYPE_CHECKING:
    from app.protocols.shared.body_codec import BodyCodec

_MAX_CACHED_PATHS = 1024
SEARCHED_BYTES = 64 * 1024
"""A field is searched in this part of a body only, because the search holds the loop."""


class RouteDescription(NamedTuple):
    """Describe a route for the OpenAPI document.

    `streams`: the response may be server-sent events. `in_bytes`: bodies may be JSON with bytes behind it. `form`: the
    parts of `multipart/form-data`, which bodies may be beside JSON and one file; None where they are not. `query`: the
    options of a body that is one file. `codes`: of errors that only this route has. `is_form`: each body is a form,
    whose parts `request` describes. `texts`: media types of responses that are plain text. `files`: those of responses
    that are one file. `is_file`: whether all are, so that `response` is that of an event.
    """

    tag: str
    summary: str
    request: type[BaseModel]
    response: type[BaseModel]
    error: type[BaseModel]
    streams: bool = False
    in_bytes: bool = False
    form: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    codes: frozenset[str] = frozenset()
    is_form: bool = False
    texts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    is_file: bool = False


class Route(NamedTuple):
    """A POST route. `path`: as `compile_path` reads it; `{name}` and `{version}` give the model of the Target, another
    parameter its resource.

    `others`: the methods of this path that the admin application answers. `field`: a body with this field is for this
    route, any other body for the routes of the same path before it.
    """

    path: str
    codec: Codec
    description: RouteDescription
    others: frozenset[str] = frozenset()
    field: str | None = None


def body_route(
    codec: "BodyCodec",
    tag: str,
    summary: str,
    response: type[BaseModel],
    error: type[BaseModel],
    path: str | None = None,
) -> Route:
    """Return the route of a codec. `path`: another one than the codec's."""
    streams = codec.stream is not None
    description = RouteDescription(tag, summary, codec.body, response, error, streams)
    return Route(path or codec.path, codec, description)


class ResolvedRoute(NamedTuple):
    """The codec of a path, and the model that the path names. `others`: see Route."""

    codec: Codec
    target: Target
    others: frozenset[str] = frozenset()

    @property
    def allowed(self) -> str:
        """The methods of the path, for an error message."""
        return ", ".join(sorted(self.others | {"POST"}))


class SharedPathCodec(JsonCodec):
    """The Codec of a path that several kinds of requests share, until the body has arrived.

    `for_body` returns the codec of the request: of a body with a field of its own, the second of two.
    """

    __slots__ = ("_codec", "_is_other", "_other")

    reads_body = True

    def __init__(self, codec: Codec, other: Codec, field: str) -> None:
        """`codec`: writes the errors of requests without a body. `other`: of bodies with the `field`."""
        self._codec = codec
        self._other = other
        # A string ends before the colon, or its quotes are escaped: this is the name of a member.
        self._is_other = re.compile(rb'"%b"\s*:' % re.escape(field.encode())).search

    def for_head(self, headers: Sequence[Header], query: bytes) -> Codec:
        codec = self._codec.for_head(headers, query)
        return self if codec is self._codec else codec

    def for_body(self, body: bytes) -> Codec:
        codec = self._codec if self._is_other(body, 0, SEARCHED_BYTES) is None else self._other
        return codec.for_body(body)

    def read(self, body: bytes, target: Target) -> NamedRequest:
        return self.for_body(body).read(body, target)

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        raise AssertionError("for_body returns the codec that encodes")

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter:
        raise AssertionError("for_body returns the codec that streams")

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return self._codec.error_body(error, request_id)


class NotImported(Exception):
    """The path may have a route that `RouteTable.import_others` imports."""


class RouteTable:
    """All inference routes of all protocols, and the permissions of all routes. Any thread.

    The routes of most protocols are imported for the first request that needs one: no other does.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        access: HttpAccess | None = None,
        others: Callable[[], Sequence[Route]] | None = None,
    ) -> None:
        """The first route's codec writes the errors of paths that belong to no protocol.

        `access`: None: that of the core. `others`: imports more routes, which requests find after `routes`. Each has a
        path of `access`, and no path that a pattern of `routes` matches. None: there are none.
        """
        self.access = access or HttpAccess()
        self._others = others
        self._lock = threading.Lock()
        self._routes: tuple[Route, ...] = ()
        self._exact: dict[str, ResolvedRoute] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        self._error_codecs: dict[str, Codec] = {}
        self._add(routes)
        self._other_parts: frozenset[str] = frozenset()
        if others is not None:
            known = {route.path for route in routes}
            paths = {path for path, methods in self.access.table.items() if "POST" in methods} - known
            self._other_parts = frozenset(part for path in paths for part in _first_parts(path)) - {""}
        # Most requests have one of few paths.
        self.find = lru_cache(maxsize=_MAX_CACHED_PATHS)(self._find)
        """Return the ResolvedRoute of a path; None where no route matches. Raises NotImported."""

    @property
    def routes(self) -> tuple[Route, ...]:
        """All routes. Imports those that are not yet imported."""
        self.import_others()
        return self._routes

    def error_codec(self, path: str) -> Codec:
        """Return the codec that writes the errors of any path: of its route, or of the first route with its first two
        parts, or one.
        """
        resolved = self._exact.get(path.removesuffix("/"))
        if resolved is not None and not resolved.others:
            return resolved.codec
        first, first_two = _first_parts(path)
        if first_two in self._other_parts or (first in self._other_parts and first not in self._error_codecs):
            self.import_others()
            resolved = self._exact.get(path.removesuffix("/"))
            if resolved is not None and not resolved.others:
                return resolved.codec
        return self._error_codecs.get(first_two) or self._error_codecs.get(first) or self._routes[0].codec

    def import_others(self) -> None:
        """Import all routes, which takes too long for an event loop."""
        if self._others is None:
            return
        with self._lock:
            if self._others is not None:
                self._add(self._others())
                self._others = None

    def _find(self, path: str) -> ResolvedRoute | None:
        # Read first: another thread may import meanwhile.
        is_whole = self._others is None
        found = self._find_imported(path)
        if found is None and not is_whole:
            matched = self.access.find(path)
            if matched is not None and "POST" in matched.methods:
                raise NotImported  # the cache keeps no error
        return found

    def _find_imported(self, path: str) -> ResolvedRoute | None:
        if not path.startswith("/"):
            return None
        path = path.removesuffix("/")
        resolved = self._exact.get(path)
        if resolved is not None:
            return resolved
        for pattern, route in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                named = match.groupdict()
                model, version = named.pop("name", None), named.pop("version", None)
                kind, resource = next(iter(named.items()), ("", None))
                return ResolvedRoute(route.codec, Target(model, version, kind, resource), route.others)
        return None

    def _add(self, routes: Sequence[Route]) -> None:
        """Add routes behind those that are known."""
        exact, codecs = dict(self._exact), dict[str, Codec]()
        for route in routes:
            if "{" not in route.path:
                path, codec = route.path.removesuffix("/"), route.codec
                if route.field is not None:
                    codec = SharedPathCodec(exact[path].codec, codec, route.field)
                exact[path] = ResolvedRoute(codec, Target(), route.others)
        for route in reversed([each for each in routes if not each.others]):
            first, first_two = _first_parts(route.path)
            codecs |= {first: route.codec, first_two: route.codec}
        codecs.pop("", None)
        # Another thread may search them meanwhile.
        self._exact = exact
        self._patterns = [*self._patterns, *((compile_path(each.path), each) for each in routes if "{" in each.path)]
        self._error_codecs = codecs | self._error_codecs
        self._routes = (*self._routes, *routes)


def _first_parts(path: str) -> tuple[str, str]:
    """Return the first part of a path, and the first two as one; "" for a path without them."""
    parts = path.split("/", 3)[1:3] if path.startswith("/") else [""]
    return parts[0], "/".join(parts) if len(parts) > 1 and not parts[1].startswith("{") else ""
