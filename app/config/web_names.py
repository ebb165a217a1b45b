"""Types of settings that name hosts, origins, proxies and the paths of URLs."""

import re
from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator

from frameworks.core.extras import found_extensions

_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+", re.ASCII)
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
_MAX_ROOT_PATH_CHARACTERS = 256

OWN_FIRST_PARTS = frozenset(
    {
        "classify", "detokenize", "docs", "embeddings", "events", "folders", "health", "infer", "inference", "metrics",
        "models", "openapi.json", "pooling", "requests", "rerank", "score", "tokenize", "v1", "v2", "web",
    }
)  # fmt: skip
"""The first parts of the paths of the core's routes."""


def first_parts() -> frozenset[str]:
    """Return the first parts of the paths of all routes: a prefix that begins with one of them would hide routes."""
    added = (path for extension in found_extensions() for path in extension.access())
    return OWN_FIRST_PARTS.union(path.split("/")[1] for path in added)


def is_root_path(value: str) -> bool:
    """Whether a text is a prefix of paths, like `/llm`, that needs no escapes in a URL or in HTML."""
    return (
        len(value) <= _MAX_ROOT_PATH_CHARACTERS
        and _ROOT_PATH.fullmatch(value) is not None
        and not {".", ".."} & set(value.split("/"))
    )


def _root_path(value: str) -> str:
    path = value.rstrip("/")
    if path and not is_root_path(path):
        raise ValueError(
            f'expected a path like "/llm" of letters, digits, ".", "_", "~", "-" and "/", at most '
            f"{_MAX_ROOT_PATH_CHARACTERS} characters"
        )
    if path and path.split("/")[1] in first_parts():
        raise ValueError(f"expected a path that begins like no route of the server, got /{path.split('/')[1]}")
    return path


def _network(value: str) -> str:
    try:
        ip_network(value, strict=False)
    except ValueError:
        raise ValueError('expected an IP address or a network, like "10.0.0.5" or "10.0.0.0/8"') from None
    return value


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError('expected a name without a port, like "models.example.org", "*.example.org" or "*"')
    return value


def _origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError('expected scheme, host and port in lower case, like "https://app.example.org", or "*"')
    return value


def _media_host(value: str) -> str:
    try:
        return _network(value)
    except ValueError:
        return _host(value)


HostPattern = Annotated[str, AfterValidator(_host)]
MediaHost = Annotated[str, AfterValidator(_media_host)]
WebOrigin = Annotated[str, AfterValidator(_origin)]
RootPath = Annotated[str, AfterValidator(_root_path)]
"""Without a slash at its end; empty: none."""
ProxyNetwork = Annotated[str, AfterValidator(_network)]
