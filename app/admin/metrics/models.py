"""Collect the metrics of each model for /metrics: state, memory, batches, times and generated text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.admin.metrics.families import Family, Kind, by_label, by_tenant, counter, gauge, histogram, time_histogram
from app.observability.tallies import ModelMetrics
from app.observability.visible_counts import Counts, sequences_of
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TenantTokens

BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_MODEL = ["model"]
_REASONS = ("exit_status", "hang", "out_of_memory", "protocol", "sigabrt", "sigkill", "sigsegv")

_REQUEST_TIMES = {
    "request_seconds": "Time from the first byte of a request to the last byte of its response. Successful requests.",
    "queue_seconds": "Time of a request in the queue. Successful requests.",
    "compute_seconds": "Time in which rows of a request ran; rows that run at the same time count once. Successful "
    "requests.",
}
_TOKEN_TIMES = {
    "time_to_first_token_seconds": "Time from the first byte of a request to the first token of its text.",
    "inter_token_seconds": "Time between two tokens of a text.",
}
_STEP_COUNTS = (
    ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
    ("preemptions", "Running texts that were queued again because the KV cache was full.", "preemptions"),
    ("proposed_tokens", "Tokens that speculation proposed and a step checked.", "proposed_tokens"),
    ("accepted_tokens", "Proposed tokens that were right.", "accepted_tokens"),
)
"""Name, documentation, and attribute of StepCounts."""


def model_families(slots: Sequence[ModelSlot], evictions: Mapping[str, int], counts: Counts) -> Iterator[Family]:
    """Yield the families of visible models. `evictions`: by model."""

    def of_models(kind: Kind, name: str, documentation: str, value: Callable[[ModelSlot], float]) -> Family:
        return by_label(kind, name, documentation, "model", ((slot.name, value(slot)) for slot in slots))

    about = "Decoded requests in the queue; a request for n texts counts as n."
    yield of_models(gauge, "queue_depth", about, counts.queue_depth)
    yield gauge(
        "model_state",
        "1 for the current state of a model, 0 for the other states.",
        ["model", "state"],
        (([slot.name, state.value], slot.state is state) for slot in slots for state in ModelState),
    )
    about = "Measured memory of the loaded versions of a model."
    yield of_models(gauge, "model_memory_bytes", about, lambda slot: slot.memory_bytes)
    yield of_models(counter, "model_loads", "Successful loads of a model.", lambda slot: slot.loads)
    yield by_label(
        counter,
        "download_bytes",
        "Bytes received from the address of a model, also by downloads that failed.",
        "model",
        ((slot.name, slot.downloaded_bytes) for slot in slots if slot.has_address),
    )
    about = "Evictions of a model to free memory for another one."
    yield of_models(counter, "model_evictions", about, lambda slot: evictions[slot.name])


def batch_families(slots: Sequence[ModelSlot]) -> Iterator[Family]:
    """Yield the families of batches, which mix tenants."""
    yield histogram("batch_size", "Rows of executed batches.", _MODEL, map(_batch_sizes, slots))
    split = ((slot.name, slot.batches.split.total()) for slot in slots)
    yield by_label(counter, "batches_split", "Batches that exceeded the memory and were split in half.", "model", split)


def process_families(slots: Iterable[ModelSlot]) -> Iterator[Family]:
    """Yield the families of models with a process of their own, which all tenants share."""
    yield counter(
        "engine_restarts",
        "Losses of a model's process, each followed by a restart, by reason: a signal such as `sigsegv`, or "
        "`exit_status`, `hang`, `out_of_memory` or `protocol`.",
        ["model", "reason"],
        [sample for slot in slots for sample in _restarts(slot)],
    )


def tenant_family(slots: Iterable[ModelSlot], tenant: str | None) -> Family:
    """Return what each tenant has used of the devices. `tenant`: the only one that is shown; None: all."""
    return counter(
        "tenant_device_seconds",
        "Device seconds that a tenant was charged: its part of each batch and step. No name: requests without a key.",
        ["tenant", "model"],
        [sample for slot in slots for sample in _tenant_seconds(slot, tenant)],
    )


def time_families(metrics: Mapping[str, ModelMetrics]) -> Iterator[Family]:
    """Yield the histograms of successful requests. `metrics`: by model."""
    yield from _histograms(_REQUEST_TIMES, metrics)
    yield time_histogram(
        "pipeline_step_seconds",
        "Time of a step of a pipeline, with its wait for its model. Successful requests.",
        [*_MODEL, "step"],
        (([model, step], each) for model, times in metrics.items() for step, each in times.steps.items()),
    )


def state_families(slots: Iterable[ModelSlot], tenant: str | None) -> Iterator[Family]:
    """Yield the families of models with a state. `tenant`: the only one that is counted; None: all."""
    stateful = [(slot.name, sequences_of(slot.versions.values(), tenant)) for slot in slots if slot.has_state]
    about = "Sequences of a model with a state that have begun and not ended."
    yield by_label(gauge, "state_sequences", about, "model", ((name, count) for name, (count, _) in stateful))
    about = "Memory of the states of all sequences of a model."
    yield by_label(gauge, "state_bytes", about, "model", ((name, size) for name, (_, size) in stateful))


def generation_families(slots: Iterable[ModelSlot], counts: Counts) -> Iterator[Family]:
    """Yield the families of visible models that generate text."""
    slots = [slot for slot in slots if slot.generates]
    yield from _token_families(slots, counts.tenant)
    if counts.tenant is None:
        yield from _sequence_families(slots)
    yield from _histograms(_TOKEN_TIMES, counts.generations())


def _histograms(documentations: Mapping[str, str], metrics: Mapping[str, Any]) -> Iterator[Family]:
    """Yield a histogram for each name, which is also the attribute of `metrics` that counts it."""
    for name, documentation in documentations.items():
        yield time_histogram(
            name, documentation, _MODEL, (([model], getattr(each, name)) for model, each in metrics.items())
        )


def _sequence_families(slots: Sequence[ModelSlot]) -> Iterator[Family]:
    """Yield the families of sequences and of the KV cache, which all tenants share."""
    yield gauge(
        "sequences",
        "Texts that are running, and texts that are waiting in the queue.",
        ["model", "state"],
        [sample for slot in slots for sample in _sequences(slot)],
    )
    yield gauge(
        "kv_cache_bytes",
        "Memory of the KV cache: used by running texts, cached from earlier texts, and free.",
        ["model", "kind"],
        [sample for slot in slots for sample in _kv_cache(slot)],
    )
    counts = [(slot.name, slot.generated) for slot in slots]
    for name, documentation, attribute in _STEP_COUNTS:
        values = ((model, getattr(each, attribute)) for model, each in counts)
        yield by_label(counter, name, documentation, "model", values)


def _token_families(slots: Sequence[ModelSlot], tenant: str | None) -> Iterator[Family]:
    """Yield the families of tokens by tenant. `tenant` None: all of them."""
    tokens = [
        ([slot.name], name, each)
        for slot in slots
        for name, each in tenant_tokens(slot.generated).items()
        if tenant is None or name == tenant
    ]
    yield counter(
        "tokens_generated",
        "Generated tokens, including the token that ends a text.",
        *by_tenant(_MODEL, [(model, name, each.generated) for model, name, each in tokens]),
    )
    yield counter(
        "prompt_tokens",
        "Tokens of the prompts.",
        *by_tenant(_MODEL, [(model, name, each.prompt) for model, name, each in tokens]),
    )


def tenant_tokens(counts: StepCounts) -> dict[str, TenantTokens]:
    """Return the tokens by tenant; "" has those of no named tenant."""
    named = counts.tenants
    prompt = counts.prompt_tokens - sum(each.prompt for each in named.values())
    generated = counts.tokens - sum(each.generated for each in named.values())
    return {"": TenantTokens(prompt, generated), **named}


def _batch_sizes(slot: ModelSlot) -> tuple[list[str], list[tuple[str, float]], float]:
    """Return label values, buckets and sum."""
    sizes = slot.batches.sizes
    buckets = [
        (str(bound), float(sum(count for rows, count in sizes.items() if rows <= bound)))
        for bound in BATCH_SIZE_BUCKETS
    ]
    buckets.append(("+Inf", float(sizes.total())))
    return [slot.name], buckets, sum(rows * count for rows, count in sizes.items())


def _restarts(slot: ModelSlot) -> Iterator[tuple[list[str], int]]:
    """Yield zeros too: Prometheus sees no growth in the first value of a series."""
    counts = slot.restarts
    for reason in sorted(counts.keys() | (_REASONS if slot.isolation == "process" else ())):
        yield [slot.name, reason], counts[reason]


def _tenant_seconds(slot: ModelSlot, only: str | None) -> Iterator[tuple[list[str], float]]:
    totals = BatchCounts.total([slot.batches, slot.generated.steps]).tenant_seconds
    for tenant, seconds in sorted(totals.items()):
        if only in (None, tenant):
            yield [tenant, slot.name], seconds


def _sequences(slot: ModelSlot) -> Iterator[tuple[list[str], int]]:
    stats = slot.step_stats
    yield [slot.name, "running"], sum(each.running for each in stats)
    yield [slot.name, "waiting"], sum(each.waiting for each in stats)


def _kv_cache(slot: ModelSlot) -> Iterator[tuple[list[str], int]]:
    stats = slot.step_stats
    used = sum(each.kv_used_bytes for each in stats)
    cached = sum(each.kv_cached_bytes for each in stats)
    yield [slot.name, "used"], used
    yield [slot.name, "cached"], cached
    yield [slot.name, "free"], sum(each.kv_total_bytes for each in stats) - used - cached
