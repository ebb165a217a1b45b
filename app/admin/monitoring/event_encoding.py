"""Write the events of the page for one view: the history as columns, one sample, models, requests."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson

from app.admin.facts import describe_device
from app.admin.models.descriptions import state_of, state_of_version, traffic_of
from app.admin.monitoring.sample_cells import INFLIGHT, MEMORY_BYTES, OWN_INFLIGHT, OWN_QUEUE, QUEUE
from app.admin.monitoring.sample_ring import (
    INTERVAL_S,
    DeviceBytes,
    Doubles,
    Sample,
    SampleRing,
    Visible,
    by_model,
    completed_by_model,
    sums,
)
from app.admin.monitoring.statistics import (
    NO_TIMES,
    as_lists,
    batches,
    latest_batches,
    latest_rates,
    latest_times,
    rates,
    times,
)
from app.admin.monitoring.visibility import shows_error, visible_cells
from app.auth.principal import Principal
from app.observability.recent_requests import FinishedRequest
from app.observability.visible_counts import Counts
from frameworks.core.devices import Device
from frameworks.models.versions.slot import ModelSlot


def event(name: str, content: object) -> bytes:
    """Return one event (WHATWG HTML, section 9.2). JSON has no line break, so that it is one line of data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(content))


def history(ring: SampleRing, principal: Principal, unix_s: float, now_s: float) -> dict[str, Any]:
    """Return the samples of the last 15 minutes as columns. `unix_s`: Unix time at `now_s` (time.monotonic)."""
    samples, visible = list(ring.samples), visible_cells(principal)
    span_s = np.array([sample.span_s for sample in samples])
    columns = _server(samples, visible, principal)
    completed = completed_by_model(samples, visible)
    shown: dict[str, Any] = {
        "interval_s": INTERVAL_S,
        "columns": {"t": [round(unix_s - now_s + sample.at_s, 3) for sample in samples]} | as_lists(columns),
        "models": {name: {"requests_per_s": np.round(row / span_s, 3).tolist()} for name, row in completed.items()},
        "devices": {},
    }
    if _is_operator(principal):
        names = list(dict.fromkeys(name for sample in samples for name in sample.devices))
        shown["devices"] = {name: _device_columns(name, samples) for name in names}
    return shown


def sample_figures(
    ring: SampleRing, principal: Principal, slots: Sequence[ModelSlot], counts: Counts
) -> dict[str, Any]:
    """Return the figures of the latest sample: of the server, and of each model of `slots`."""
    latest, visible = ring.samples[-1], visible_cells(principal)
    window = ring.window()
    # Only busy samples have requests: most of an idle server's are not read.
    recent = by_model([sample for sample in window if sample.is_busy], visible)
    now = by_model([latest], visible)
    span_s = sum(sample.span_s for sample in window)
    rates_of_versions = _rates_of_versions(window, principal)
    models = {
        slot.name: _live(slot, counts, now.get(slot.name), recent.get(slot.name), (latest.span_s, span_s))
        | ({"versions": rates_of_versions[slot.name]} if slot.name in rates_of_versions else {})
        for slot in slots
    }
    return {"server": _latest_server(latest, visible, principal), "models": models}


def device_figures(devices: Iterable[Device], limits: dict[str, int], sample: Sample) -> list[dict[str, Any]]:
    """Return the memory of each device. `limits`: what models may use, by memory; empty for a tenant."""
    shown = []
    for device in devices:
        reserved = sample.devices.get(device.memory_id, DeviceBytes())
        shown.append(
            {
                **describe_device(device),
                "limit_bytes": limits.get(device.memory_id),
                "reserved_bytes": reserved.reserved if limits else None,
                "kv_bytes": reserved.kv_total if limits else None,
                "kv_used_bytes": reserved.kv_used if limits else None,
                "kv_cached_bytes": reserved.kv_cached if limits else None,
                "collections_bytes": reserved.collections if limits else None,
            }
        )
    return shown


def describe_request(request: FinishedRequest, principal: Principal, offset_s: float) -> dict[str, Any]:
    """Return a request as JSON. `offset_s`: from time.perf_counter to Unix time."""
    error = request.error or None
    if error is not None and not shows_error(principal, request):
        error = None
    return {
        "key": f"{request.worker}-{request.number}",
        "id": request.request_id,
        "ended_s": round(request.ended_s + offset_s, 3),
        "tenant": request.tenant,
        "method": request.method,
        "path": request.path,
        "model": request.model or None,
        "version": request.version or None,
        "adapter": request.adapter or None,
        "status": request.status,
        "code": request.code or None,
        "error": error,
        "decode_ms": round(request.decode_s * 1e3, 3),
        "queue_ms": round(request.queue_s * 1e3, 3),
        "compute_ms": round(request.compute_s * 1e3, 3),
        "encode_ms": round(request.encode_s * 1e3, 3),
        "total_ms": round(request.total_s * 1e3, 3),
        "batch_rows": request.batch_rows or None,
        "cache_hit": request.cache_hit,
        "request_bytes": request.request_bytes,
        "response_bytes": request.response_bytes,
    }


def _server(samples: Sequence[Sample], visible: Visible, principal: Principal) -> dict[str, Doubles]:
    """Return the figures of the server, as the principal sees it, one value for each sample."""
    total = sums(samples, visible)
    span_s = np.array([sample.span_s for sample in samples])
    is_operator = principal.counts_of is None
    shown = rates(total, span_s) | times(total)
    if is_operator:
        shown |= batches(total, span_s)
    inflight = total[:, INFLIGHT if is_operator else OWN_INFLIGHT]
    if _is_operator(principal):
        inflight = np.array([sample.inflight for sample in samples], np.float64)
        used = [_use(sample) for sample in samples]
        shown |= {name: np.array([each[name] for each in used], np.float64) for name in _USE}
    return shown | {
        "inflight": inflight,
        "queue": total[:, QUEUE if is_operator else OWN_QUEUE],
        "memory_bytes": total[:, MEMORY_BYTES],
    }


def _latest_server(sample: Sample, visible: Visible, principal: Principal) -> dict[str, Any]:
    """Return the figures of the server in one sample; as `_server`."""
    total = sample.values[visible.rows(sample.keys)].sum(axis=0, dtype=np.float64).tolist()
    is_operator = principal.counts_of is None
    shown: dict[str, float | None] = {**latest_rates(total, sample.span_s), **latest_times(total)}
    if is_operator:
        shown |= latest_batches(total, sample.span_s)
    if _is_operator(principal):
        shown |= _use(sample)
    return shown | {
        "inflight": float(sample.inflight)
        if _is_operator(principal)
        else total[INFLIGHT if is_operator else OWN_INFLIGHT],
        "queue": total[QUEUE if is_operator else OWN_QUEUE],
        "memory_bytes": total[MEMORY_BYTES],
    }


_USE = ("cpu_cores", "resident_bytes", "engine_cpu_cores", "engine_resident_bytes")


def _use(sample: Sample) -> dict[str, float | None]:
    """Return what the processes of the server used in a sample; None for those of models where there are none."""
    server, engines = sample.use
    own = round(server.cores, 3), server.memory_bytes
    of_engines = (None, None) if engines is None else (round(engines.cores, 3), engines.memory_bytes)
    return dict(zip(_USE, (*own, *of_engines), strict=True))


def _device_columns(name: str, samples: Sequence[Sample]) -> dict[str, list[int]]:
    found = [sample.devices.get(name, DeviceBytes()) for sample in samples]
    return {
        "reserved_bytes": [each.reserved for each in found],
        "kv_used_bytes": [each.kv_used for each in found],
        "kv_cached_bytes": [each.kv_cached for each in found],
    }


def _live(
    slot: ModelSlot, counts: Counts, now: Doubles | None, recent: Doubles | None, spans_s: tuple[float, float]
) -> dict[str, Any]:
    """Return the figures of one model. `now`, `recent`: its cells of the latest sample, and of the window."""
    span_s, window_s = spans_s
    total, failed = counts.completed(slot.name)
    shown: dict[str, Any] = {
        "state": slot.state.value,
        "inflight": counts.in_flight([slot]),
        "queue": counts.queue_depth(slot),
        "requests_total": total,
        "failed_total": failed,
    }
    if now is not None:
        shown |= latest_rates(now.tolist(), span_s)
    if recent is not None:
        row = recent.tolist()
        shown |= latest_times(row)
        if counts.tenant is None:
            shown["batch_rows"] = latest_batches(row, window_s)["batch_rows"]
    elif now is not None:
        shown |= NO_TIMES
        if counts.tenant is None:
            shown["batch_rows"] = None
    if counts.tenant is not None:
        return shown
    return shown | _sequences(slot) | _shadow(slot, counts)


def _sequences(slot: ModelSlot) -> dict[str, int]:
    """Return the sequences and the KV cache of a language model."""
    stats = slot.step_stats
    if not stats:
        return {}
    return {
        "running": sum(each.running for each in stats),
        "waiting": sum(each.waiting for each in stats),
        "kv_bytes": sum(each.kv_total_bytes for each in stats),
        "kv_used_bytes": sum(each.kv_used_bytes for each in stats),
        "kv_cached_bytes": sum(each.kv_cached_bytes for each in stats),
    }


def _shadow(slot: ModelSlot, counts: Counts) -> dict[str, Any]:
    """Return how the responses of a shadow version compare, since the start of the server."""
    if slot.shadow is None or not counts.are_of_server:
        return {}
    outcomes, version = counts.of_server.shadow_outcomes, slot.shadow.version
    found = {name: outcomes.get((slot.name, version, name), 0) for name in ("same", "different", "failed", "dropped")}
    return {"shadow": {"version": version, **found}}


def _rates_of_versions(window: Sequence[Sample], principal: Principal) -> dict[str, dict[str, float]]:
    """Return the requests per second of each version by model, over the window; only of models with several."""
    span_s = sum(sample.span_s for sample in window[1:])
    if not span_s:
        return {}
    found: dict[str, dict[str, float]] = {}
    for (model, version, tenant), count in window[-1].versions.items():
        if principal.counts_of in (None, tenant):
            more = count - window[0].versions.get((model, version, tenant), 0)
            versions = found.setdefault(model, {})
            versions[version] = round(versions.get(version, 0.0) + max(0, more) / span_s, 3)
    return found


def _is_operator(principal: Principal) -> bool:
    """Whether nothing is left out; as Counts.are_of_server."""
    return principal.counts_of is None and principal.sees_all


def describe_model(slot: ModelSlot, sees_paths: bool) -> dict[str, Any]:
    """Return the state of a model and of its versions, without counts: what changes while a server runs.

    `sees_paths`: of the reader.
    """
    entry, answering = slot.entry, slot.answering
    return {
        **state_of(slot, sees_paths),
        **traffic_of(slot),
        "generates": slot.generates or bool(slot.spec and slot.spec.generation),
        "pinned": entry.pinned,
        "load": entry.load,
        "isolation": slot.isolation,
        "max_batch_size": slot.limits.max_rows,
        "instances": entry.instances,
        "queue_limit": slot.requests.max_queue_size,
        "adapters": [each.name for each in slot.adapters],
        "versions": {
            name: {**state_of_version(version, sees_paths), "answers": name in answering}
            for name, version in slot.versions.items()
        },
    }
