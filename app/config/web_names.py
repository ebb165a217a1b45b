"""Types of settings that name hosts and origins."""

import re
from typing import Annotated

from pydantic import AfterValidator

_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+", re.ASCII)


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError('expected a name without a port, like "models.example.org", "*.example.org" or "*"')
    return value


def _origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError('expected scheme, host and port in lower case, like "https://app.example.org", or "*"')
    return value


HostPattern = Annotated[str, AfterValidator(_host)]
WebOrigin = Annotated[str, AfterValidator(_origin)]
