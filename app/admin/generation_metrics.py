"""Of /metrics: how the models stand that generate text, and what they have generated."""

from collections.abc import Iterable, Iterator, Mapping

from app.observability.metrics import GenerationMetrics
from frameworks.models.slot import ModelSlot


def generation_families(slots: Iterable[ModelSlot], metrics: Mapping[str, GenerationMetrics]) -> Iterator[object]:
    """Every family by model; of models that generate text only. `metrics`: by model, of those that have generated."""
    generating = [slot for slot in slots if slot.generates]
    yield from _counted(generating)
    yield from _standing(generating)
    yield from _times(metrics)


def _counted(slots: list[ModelSlot]) -> Iterator[object]:
    from prometheus_client.core import CounterMetricFamily

    tokens = CounterMetricFamily(
        "roundhouse_tokens_generated", "Tokens generated, those that ended a text included.", labels=["model"]
    )
    prompts = CounterMetricFamily("roundhouse_prompt_tokens", "Tokens of prompts that were read.", labels=["model"])
    hits = CounterMetricFamily(
        "roundhouse_prefix_cache_hit_tokens", "Those of them that were known from before.", labels=["model"]
    )
    preemptions = CounterMetricFamily(
        "roundhouse_preemptions", "Times that a text went back into the line for want of room.", labels=["model"]
    )
    for slot in slots:
        counts = slot.generated
        tokens.add_metric([slot.name], counts.tokens)
        prompts.add_metric([slot.name], counts.prompt_tokens)
        hits.add_metric([slot.name], counts.prefix_hit_tokens)
        preemptions.add_metric([slot.name], counts.preemptions)
    yield from (tokens, prompts, hits, preemptions)


def _standing(slots: list[ModelSlot]) -> Iterator[object]:
    from prometheus_client.core import GaugeMetricFamily

    sequences = GaugeMetricFamily(
        "roundhouse_sequences",
        "Texts that are being generated, and that wait for their turn.",
        labels=["model", "state"],
    )
    memory = GaugeMetricFamily(
        "roundhouse_kv_cache_bytes",
        "Memory for keys and values: used by texts that run, kept of those that have been, and free.",
        labels=["model", "kind"],
    )
    for slot in slots:
        stats = slot.step_stats
        sequences.add_metric([slot.name, "running"], sum(each.running for each in stats))
        sequences.add_metric([slot.name, "waiting"], sum(each.waiting for each in stats))
        used, cached = sum(each.kv_used_bytes for each in stats), sum(each.kv_cached_bytes for each in stats)
        memory.add_metric([slot.name, "used"], used)
        memory.add_metric([slot.name, "cached"], cached)
        memory.add_metric([slot.name, "free"], sum(each.kv_total_bytes for each in stats) - used - cached)
    yield from (sequences, memory)


def _times(metrics: Mapping[str, GenerationMetrics]) -> Iterator[object]:
    from prometheus_client.core import HistogramMetricFamily

    first = HistogramMetricFamily(
        "roundhouse_time_to_first_token_seconds",
        "From a request's first byte to the first token of its text.",
        labels=["model"],
    )
    between = HistogramMetricFamily(
        "roundhouse_inter_token_seconds", "Between two tokens of one text.", labels=["model"]
    )
    for model, times in metrics.items():
        for family, histogram in (
            (first, times.time_to_first_token_seconds),
            (between, times.inter_token_seconds),
        ):
            family.add_metric([model], buckets=histogram.cumulated(), sum_value=histogram.total)
    yield from (first, between)
