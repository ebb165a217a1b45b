"""Connect to web servers: addresses that are allowed, TLS, and the proxy of the environment."""

import ipaddress
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from http.client import HTTPConnection
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from frameworks.core.errors import InvalidModel

CONNECT_TIMEOUT_S = 10.0

_MAX_ADDRESSES = 4


def shown(url: str) -> str:
    """Return a URL for messages: without its query, which may hold a signature, and without credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:300]


def split(url: str) -> SplitResult:
    """Return the parts of a URL with a host. Raises InvalidModel, without the URL: it may hold credentials."""
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidModel("URL of a source: expected a host and a port up to 65535; check the address and redirects")
    return parts


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL, or that of its scheme."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(parts: SplitResult) -> bool:
    """Whether a URL names this machine, by an address or as `localhost`."""
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Authorities = Callable[[], ssl.SSLContext]
"""Return the context with the trusted certificate authorities; it is shared by the threads of a fetch."""


def connect(parts: SplitResult, must_be_public: bool, authorities: Authorities) -> tuple[socket.socket, bool]:
    """Return a connected socket, with TLS for https, and whether the host has a public address.

    `must_be_public`: refuse private addresses. Raises OSError, HTTPException, and InvalidModel for a refused address.
    Behind a proxy, which resolves names itself, only an address instead of a name shows a private host.
    """
    host, port = parts.hostname or "", port_of(parts)
    proxy = _proxy(parts)
    if proxy is not None:
        is_public = not is_loopback(parts) and _is_literal_public(host)
        _check_public(parts, is_public, must_be_public)
        connected = _tunnel(proxy, host, port)
    else:
        connected = _connect_to(parts, port, must_be_public)
        is_public = _is_public(connected.getpeername()[0])
    if parts.scheme != "https":
        return connected, is_public
    try:
        connected.settimeout(CONNECT_TIMEOUT_S)  # of the whole handshake
        return authorities().wrap_socket(connected, server_hostname=host), is_public
    except BaseException:
        connected.close()
        raise


def _connect_to(parts: SplitResult, port: int, must_be_public: bool) -> socket.socket:
    host = parts.hostname or ""
    failure: OSError = OSError("no address")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found[:_MAX_ADDRESSES]:
        _check_public(parts, _is_public(str(address[0])), must_be_public)
        connected = socket.socket(family, kind, protocol)
        connected.settimeout(CONNECT_TIMEOUT_S)
        try:
            connected.connect(address)
        except OSError as error:
            connected.close()
            failure = error
        else:
            return connected
    raise failure


def _check_public(parts: SplitResult, is_public: bool, must_be_public: bool) -> None:
    if must_be_public and not is_public:
        raise InvalidModel(
            f"{shown(parts.geturl())}: expected a redirect to a public host, got a private address; "
            "give the address that the redirect names"
        )


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_global


def _is_literal_public(host: str) -> bool:
    try:
        return _is_public(host)
    except ValueError:
        return True


def _proxy(parts: SplitResult) -> SplitResult | None:
    """Return the proxy for https that the environment names (HTTPS_PROXY, NO_PROXY)."""
    host = parts.hostname or ""
    proxies = getproxies()
    url = proxies.get("https") or proxies.get("all")
    if parts.scheme != "https" or not url or is_loopback(parts) or proxy_bypass(host):
        return None
    proxy = split(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http":
        raise InvalidModel(f"HTTPS_PROXY: expected http://host:port, got {proxy.scheme[:16]}://; use an HTTP proxy")
    return proxy


def _tunnel(proxy: SplitResult, host: str, port: int) -> socket.socket:
    """Return a socket to `host` through a proxy."""
    headers = {}
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
    connection = HTTPConnection(proxy.hostname or "", proxy.port or 80, timeout=CONNECT_TIMEOUT_S)
    connection.set_tunnel(host, port, headers)
    connection.connect()
    connected: socket.socket = connection.sock
    return connected
