"""Serve the web page: `GET /` for browsers, and its files below `/web`. Neither needs a key."""

import asyncio
import os
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.file_responses import FileSender, header_values, is_known, open_regular, send_whole
from app.http.page.files import WebFile, WebSite
from app.http.prefixes import prefix_of
from app.protocols.shared.codec import Header
from app.protocols.shared.errors import MethodNotAllowed, NotFound

_FILES = "/web/"
_METHODS = "GET, HEAD"
_MAX_PREFIXES = 16
"""Pages for so many prefixes of the path are kept."""

# Only files of this server; WebAssembly may be compiled, text may not be evaluated, and no page may frame this one.
_POLICY = (
    b"default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    b"font-src 'self'; connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)
_SECURITY: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # Isolation from other origins, which threads of WebAssembly need.
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_OF_PAGE: tuple[Header, ...] = (*_SECURITY, (b"cache-control", b"no-cache"), (b"vary", b"Accept, Accept-Encoding"))
_OF_PAGE_WITH_BASE: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY.replace(b"base-uri 'none'", b"base-uri 'self'")),
    *_OF_PAGE[1:],
)
_OF_FILE: tuple[Header, ...] = (
    *_SECURITY,
    (b"cache-control", b"public, max-age=31536000, immutable"),
    (b"vary", b"Accept-Encoding"),
)


class WebPage:
    """The ASGI application before that of the other routes. Errors are raised, as the middleware answers them."""

    def __init__(self, site: WebSite, admin: ASGIApp) -> None:
        """`admin`: answers all other requests."""
        self._site = site
        self._admin = admin
        self._sender = FileSender()
        self._index_below = lru_cache(_MAX_PREFIXES)(site.index_below)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises NotFound for an unknown file or an old hash, MethodNotAllowed."""
        if scope["type"] != "http":
            await self._admin(scope, receive, send)
        elif asks_for_page(scope):
            prefix = prefix_of(scope)
            if prefix:
                await self._send(self._index_below(prefix), _OF_PAGE_WITH_BASE, scope, receive, send)
            else:
                await self._send(self._site.index, _OF_PAGE, scope, receive, send)
        elif scope["path"].startswith(_FILES):
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(scope["method"], scope["path"][:200], _METHODS)
            file = self._site.find(scope["path"])
            if file is None:
                raise NotFound(f"there is nothing at {scope['path'][:200]}; GET / names the files of the page")
            await self._send(file, _OF_FILE, scope, receive, send)
        else:
            await self._admin(scope, receive, send)

    async def _send(self, file: WebFile, about: tuple[Header, ...], scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*about, (b"content-type", file.media_type)]
        if file.content is None:
            opened = await asyncio.to_thread(open_regular, file.path)
            try:
                await self._sender.send(opened, file.etag, headers, scope, receive, send)
            finally:
                os.close(opened.descriptor)
            return
        headers.append((b"etag", file.etag))
        if is_known(file.etag, scope["headers"]):
            await send_whole(send, 304, headers, b"")
            return
        content = file.content
        if file.compressed is not None and any(map(_accepts_gzip, header_values(scope["headers"], b"accept-encoding"))):
            content = file.compressed
            headers.append((b"content-encoding", b"gzip"))
        await send_whole(send, 200, [*headers, (b"content-length", b"%d" % len(content))], content)


def is_page(scope: Scope) -> bool:
    """Whether a request is for the page or for one of its files. A file is found, or not, without a key."""
    return asks_for_page(scope) or (scope["path"].startswith(_FILES) and scope["method"] in ("GET", "HEAD"))


def asks_for_page(scope: Scope) -> bool:
    """Whether a request is for the page: GET or HEAD of `/` by a client that accepts HTML, as browsers do."""
    return (
        scope["path"] == "/"
        and scope["method"] in ("GET", "HEAD")
        and any(b"text/html" in value for value in header_values(scope["headers"], b"accept"))
    )


def _accepts_gzip(value: bytes) -> bool:
    """Whether an Accept-Encoding header allows gzip: named, with a weight other than 0."""
    for part in value.lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip", b"*"):
            digits = weight.strip().removeprefix(b"q=").strip()
            return not digits or digits.strip(b"0.") != b""
    return False
