"""Serve the web page: `GET /` for browsers, and its files below `/web`. Neither needs a key."""

from collections.abc import Iterable

from starlette.responses import FileResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.web_files import WebFile, WebSite
from app.protocols.codec import Header
from app.protocols.errors import MethodNotAllowed, NotFound

_FILES = "/web/"
_METHODS = "GET, HEAD"

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises NotFound for an unknown file or an old hash, MethodNotAllowed."""
        if scope["type"] != "http":
            await self._admin(scope, receive, send)
        elif asks_for_page(scope):
            await _send(self._site.index, _OF_PAGE, scope, receive, send)
        elif scope["path"].startswith(_FILES):
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(scope["method"], scope["path"][:200], _METHODS)
            file = self._site.find(scope["path"])
            if file is None:
                raise NotFound(f"there is nothing at {scope['path'][:200]}; GET / names the files of the page")
            await _send(file, _OF_FILE, scope, receive, send)
        else:
            await self._admin(scope, receive, send)


def is_page(scope: Scope) -> bool:
    """Whether a request is for the page or for one of its files. A file is found, or not, without a key."""
    return asks_for_page(scope) or (scope["path"].startswith(_FILES) and scope["method"] in ("GET", "HEAD"))


def asks_for_page(scope: Scope) -> bool:
    """Whether a request is for the page: GET or HEAD of `/` by a client that accepts HTML, as browsers do."""
    return (
        scope["path"] == "/"
        and scope["method"] in ("GET", "HEAD")
        and any(b"text/html" in value for value in _values(scope, b"accept"))
    )


async def _send(file: WebFile, headers: tuple[Header, ...], scope: Scope, receive: Receive, send: Send) -> None:
    if _is_known(file.etag, _values(scope, b"if-none-match")):
        await _send_content(send, 304, [*headers, (b"etag", file.etag)], b"")
    elif file.content is None:
        own = {name.decode(): value.decode() for name, value in (*headers, (b"etag", file.etag))}
        response = FileResponse(file.path, media_type=file.media_type.decode(), headers=own)
        await response({**scope, "method": scope["record"].method}, receive, send)
    else:
        content, encoding = file.content, []
        if file.compressed is not None and any(map(_accepts_gzip, _values(scope, b"accept-encoding"))):
            content, encoding = file.compressed, [(b"content-encoding", b"gzip")]
        about = [(b"content-type", file.media_type), (b"content-length", str(len(content)).encode())]
        await _send_content(send, 200, [*about, *encoding, *headers, (b"etag", file.etag)], content)


async def _send_content(send: Send, status: int, headers: list[Header], content: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


def _is_known(etag: bytes, values: Iterable[bytes]) -> bool:
    """Whether an If-None-Match header (RFC 9110, section 13.1.2) names the content. Proxies mark tags as weak."""
    tags = [tag.strip().removeprefix(b"W/") for value in values for tag in value.split(b",")]
    return etag in tags or b"*" in tags


def _accepts_gzip(value: bytes) -> bool:
    """Whether an Accept-Encoding header allows gzip: named, with a weight other than 0."""
    for part in value.lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip", b"*"):
            digits = weight.strip().removeprefix(b"q=").strip()
            return not digits or digits.strip(b"0.") != b""
    return False
