"""Serve below a prefix of the path, which a proxy in front removes, or leaves to the server.

All other parts see the path without the prefix. The page, the links of `GET /` and the OpenAPI document name paths for
clients: they read the prefix by `prefix_of`. No response is a redirect, which would have to name the prefix.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

from starlette.types import Scope

from app.config.web_names import is_root_path

_HEADER = b"x-forwarded-prefix"
_KEY = "prefix"


class PrefixRules(NamedTuple):
    """`root_path`: like `/llm`, empty for none. `trusted_proxies`: networks whose X-Forwarded-Prefix is believed."""

    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()


class PathPrefixes:
    """Take the prefix off the path of each request, before anything else reads it."""

    def __init__(self, rules: PrefixRules) -> None:
        self._root_path = rules.root_path
        self._below = f"{rules.root_path}/"
        self._networks = tuple(ip_network(each, strict=False) for each in rules.trusted_proxies)
        self._is_trusted = lru_cache(maxsize=1024)(self._is_in_networks)

    def set_prefix(self, scope: Scope) -> None:
        """Take the prefix off `path`, and set that of `prefix_of`.

        `raw_path`, which signatures cover, becomes or stays the path that the client sent.
        """
        path = scope["path"]
        if self._root_path:
            scope[_KEY] = self._root_path
            if path.startswith(self._below):
                scope["path"] = path[len(self._root_path) :]
                return
            if path == self._root_path:
                scope["path"] = "/"
                return
        if not self._networks or not self._is_trusted((scope.get("client") or ("",))[0]):
            return
        forwarded = _forwarded_prefix(scope["headers"])
        if forwarded is not None:
            scope[_KEY] = forwarded
            scope["raw_path"] = forwarded.encode() + scope["raw_path"]

    def _is_in_networks(self, client: str) -> bool:
        try:
            address = ip_address(client)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def prefix_of(scope: Scope) -> str:
    """Return the prefix that clients put before the paths of the server; empty if there is none, or none is known."""
    prefix: str = scope.get(_KEY, "")
    return prefix


def set_prefix(scope: Scope, prefix: str) -> None:
    """Set what `prefix_of` returns, in a process that gets the request from another one."""
    scope[_KEY] = prefix


def _forwarded_prefix(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return the prefix of a request; those of several proxies follow each other. None: no usable one."""
    parts = [part.strip() for name, value in headers if name == _HEADER for part in value.split(b",")]
    prefix = b"".join(part.rstrip(b"/") for part in parts).decode("latin-1")
    return prefix if is_root_path(prefix) else None
