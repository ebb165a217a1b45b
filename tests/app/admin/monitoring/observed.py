"""Counts of requests, models that count, and readers of the page's events."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.auth.principal import Principal
from app.observability.metrics import Observer, RequestRecord
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.batch.batcher import BatchLimits

TENANTS = {name: Principal(Tenant(name), patterns=[("*",)]) for name in ("red", "blue")}
OPERATOR = Principal(Tenant("ops"), patterns=[("*",)], is_operator=True)


def observe(
    observer: Observer, model: str = "m", tenant: str = "red", status: int = 200, total_s: float = 0.01, **fields: Any
) -> RequestRecord:
    """Count one request. Its queue takes a quarter of its time, and its computation half."""
    timings = Timings(0.0, total_s / 4, total_s / 2, 0.0)
    code = "" if status == 200 else "overloaded"
    record = RequestRecord("id", "POST", "/infer", 1.0, model, "1" if model else "", status, code, timings)
    record.principal = TENANTS.get(tenant) or Principal(Tenant(tenant))
    for name, value in fields.items():
        setattr(record, name, value)
    observer.record_inference(record, total_s)
    return record


def make_slot(name: str) -> ModelSlot:
    """Return a model that is not loaded."""
    identity = ModelIdentity(
        "onnx", OnnxModelEntry(name=name, path=Path("files")), BatchLimits(max_rows=8), ageing_s=1.0
    )
    return ModelSlot(identity, Path("files"))


def parse(content: bytes) -> list[tuple[str, Any]]:
    """Return the events of a stream: names and contents. Comments are left out."""
    found = []
    for block in content.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            (_, name), (_, data) = (line.split(": ", 1) for line in lines)
            found.append((name, json.loads(data)))
    return found


def named(events: Iterable[tuple[str, Any]], name: str) -> list[Any]:
    """Return the contents of the events with a name."""
    return [content for each, content in events if each == name]


class FakeReader:
    """Collects the events of a view."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.delivered: list[tuple[int, bytes]] = []
        self.news = asyncio.Event()

    def deliver(self, number: int, content: bytes) -> None:
        self.delivered.append((number, content))
        self.news.set()

    @property
    def events(self) -> list[tuple[str, Any]]:
        return [event for _, content in self.delivered for event in parse(content)]
