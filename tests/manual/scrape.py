"""Scrape a server without models, within this process."""

import asyncio
from typing import Any
from unittest.mock import patch

from starlette.types import Message, Scope

from app.auth.principal import Principal
from app.config import load_settings
from app.observability.metrics import RequestRecord
from app.server.build import build
from frameworks.core.tenants import Tenant

_METRICS_SCOPE: Scope = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/metrics",
    "raw_path": b"/metrics",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 8080),
}


def metric_families() -> list[Any]:
    """Return the families of prometheus_client that a scrape of a server without models collects.

    A tenant's request was rejected before, so that the families have the label `tenant`.
    """
    families: list[Any] = []

    def capture(registry: Any) -> bytes:
        families.extend(registry.collect())
        return b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200

    async def scrape() -> None:
        app = build(load_settings(None, {}), "none").app
        tenant = Principal(Tenant("search"))
        app._observer.record_inference(RequestRecord("id", "POST", "/infer", 0.0, status=503, principal=tenant), 0.0)
        await app(_METRICS_SCOPE, receive, send)

    with patch("prometheus_client.generate_latest", capture):
        asyncio.run(scrape())
    assert families
    return families
