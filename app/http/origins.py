"""Refuse requests that a foreign web page sends through the browser of a user.

A page can reach a server that only its reader reaches, by its address or by a DNS name that is changed after the page
was loaded. The Host header shows the second, Origin and Sec-Fetch-Site show the first. Other clients send neither of
these two. Over gRPC nothing is checked: no page can open a connection of HTTP/2 without TLS, or send its content type.
"""

import re
from collections.abc import Collection
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

from starlette.types import Scope

from app.auth.errors import Forbidden
from app.protocols.shared.codec import Header
from frameworks.core.errors import InvalidInput

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = (b"same-origin", b"none")
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".home.arpa")
"""Names below these are not in the public DNS, where anybody may own a name and change its address."""

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")
_PORT = re.compile(r"(:[0-9]{0,5})?")
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+)*")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{0,2048}")

_MAX_KNOWN_HOSTS = 1024
_MAX_AGE_S = b"600"
_METHODS = b"GET, HEAD, POST, DELETE"
_RATE_LIMITS = [
    b"x-ratelimit-%b-%b" % (of, unit) for unit in (b"requests", b"tokens") for of in (b"limit", b"remaining", b"reset")
]
_EXPOSED = b", ".join(
    [b"x-request-id, server-timing, retry-after, x-roundhouse-ignored, inference-header-content-length", *_RATE_LIMITS]
)


class OriginRules(NamedTuple):
    """`allowed_hosts`: names beside the private ones, `*.example.org` for all below one, `*` for all. `cors_origins`:
    the origins whose pages may call, `*` for all.
    """

    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()


class OriginPolicy:
    """Check requests by the headers that a browser sets and a page cannot."""

    def __init__(self, rules: OriginRules) -> None:
        names = [name.lower() for name in rules.allowed_hosts]
        self._any_host = "*" in names
        self._names = frozenset(name for name in names if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))
        self._origins = frozenset(origin.encode() for origin in rules.cors_origins)
        # Caches must not give one origin the response to another.
        self.plain: tuple[Header, ...] = ((b"vary", b"Origin"),) if self._origins else ()
        """The headers of every response."""
        self.known_hosts: set[bytes] = set()
        """Values of the Host header that were accepted: clients send the same one again and again."""

    def check(self, scope: Scope) -> tuple[Header, ...]:
        """Return the headers that the response needs. The endpoint omits it for known hosts without a page.

        Raises InvalidInput for a Host header that is absent, repeated or not valid; Forbidden for a foreign host, and
        for a foreign page that does more than read.
        """
        host = origin = site = None
        num_hosts = 0
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                num_hosts += 1
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if num_hosts != 1 or host not in self.known_hosts:
            self._check_host(scope, host, num_hosts)
        if origin is None and site is None:
            return self.plain
        return self._check_origin(scope, host, origin, site)

    def preflight(self, headers: Collection[Header]) -> tuple[Header, ...] | None:
        """Return the headers of the response to a CORS preflight request; None for any other OPTIONS.

        Raises Forbidden for an origin whose pages may not call.
        """
        if not is_preflight(headers):
            return None
        values = dict(headers)
        origin = values[b"origin"]
        if not self._is_allowed(origin):
            raise _foreign(origin)
        wanted = values.get(b"access-control-request-headers", b"")
        return (
            *self._cors_headers(origin),
            (b"vary", b"Access-Control-Request-Method, Access-Control-Request-Headers"),
            (b"access-control-allow-methods", _METHODS),
            # The page could send every header itself if it were not in a browser.
            (b"access-control-allow-headers", wanted if _HEADER_NAMES.fullmatch(wanted) else b""),
            (b"access-control-max-age", _MAX_AGE_S),
        )

    def _check_host(self, scope: Scope, host: bytes | None, count: int) -> None:
        if host is None and scope.get("http_version") == "1.0":
            return  # no browser; HTTP/1.0 has no Host header
        if host is None or count > 1:
            raise InvalidInput("host", f"expected one Host header, got {count or 'none'}; send the name of the server")
        if not self._is_own(_host_name(host)):
            raise Forbidden(
                "host: expected localhost, an IP address, a name without a dot or one of server.allowed_hosts, "
                f'got "{host.decode("latin-1")[:200]}"; add it to server.allowed_hosts'
            )
        if len(self.known_hosts) < _MAX_KNOWN_HOSTS:
            self.known_hosts.add(host)

    def _is_own(self, name: str) -> bool:
        if self._any_host or "." not in name or _IPV4.fullmatch(name):
            return True  # an IPv6 address has no dot, or is in brackets
        return name.startswith("[") or name in self._names or name.endswith((*_PRIVATE_SUFFIXES, *self._suffixes))

    def _check_origin(
        self, scope: Scope, host: bytes | None, origin: bytes | None, site: bytes | None
    ) -> tuple[Header, ...]:
        if origin is not None and self._is_allowed(origin):
            return self._cors_headers(origin)
        if scope["method"] not in _SAFE_METHODS:
            # Newer browsers say it themselves, also behind a proxy that changes the Host header.
            is_own = site in _OWN_SITES if site is not None else _is_same_host(origin, host)
            if not is_own:
                raise _foreign(origin)
        return self.plain

    def _is_allowed(self, origin: bytes) -> bool:
        return origin in self._origins or b"*" in self._origins

    def _cors_headers(self, origin: bytes) -> tuple[Header, ...]:
        allowed = origin if origin in self._origins else b"*"
        return (
            *self.plain,
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", _EXPOSED),
        )


def is_preflight(headers: Collection[Header]) -> bool:
    """Whether an OPTIONS request is a browser's question what a page may send (Fetch standard, CORS preflight)."""
    return {b"origin", b"access-control-request-method"} <= {name for name, _ in headers}


def _host_name(host: bytes) -> str:
    """Return the host without its port, in lower case. Raises InvalidInput."""
    text = host.decode("latin-1").lower()
    name, bracket, port = text.partition("]")
    if text.startswith("[") and bracket and _PORT.fullmatch(port):
        try:
            IPv6Address(name[1:])
        except AddressValueError:
            pass
        else:
            return f"{name}]"
    name, _, port = text.partition(":")
    if _NAME.fullmatch(name) and _PORT.fullmatch(text[len(name) :]):
        return name.removesuffix(".")
    raise InvalidInput(
        "host", f'expected a name or an address, and a port, got "{text[:200]}"; send the server\'s name'
    )


def _is_same_host(origin: bytes | None, host: bytes | None) -> bool:
    """Whether the page came from this host. Its scheme may differ behind a proxy that ends TLS."""
    return origin is not None and host is not None and origin.partition(b"://")[2].lower() == host.lower()


def _foreign(origin: bytes | None) -> Forbidden:
    shown = f'"{origin.decode("latin-1")[:200]}"' if origin is not None else "a page of another site"
    return Forbidden(
        f"origin: expected a page of this server or of server.cors_origins, got {shown}; add it to server.cors_origins"
    )
