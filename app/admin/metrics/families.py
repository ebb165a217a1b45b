"""Build the metric families of prometheus_client from Python numbers.

prometheus_client is imported at the first scrape, so that it does not delay the start.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.observability.tallies import Histogram

Family = Any
"""A metric family of prometheus_client, which has no types for it."""
Samples = Iterable[tuple[Sequence[str], float]]
"""Pairs of label values and value."""
Kind = Callable[[str, str, Sequence[str], Samples], Family]
"""`counter` or `gauge`."""
Bucket = tuple[str, float] | tuple[str, float, Any]
"""Upper bound, cumulated count, and perhaps an exemplar of prometheus_client."""


def by_tenant(
    labels: Sequence[str], samples: Iterable[tuple[Sequence[str], str, float]]
) -> tuple[Sequence[str], Samples]:
    """Return labels and samples, with the label `tenant` if any sample names one.

    `samples`: label values, tenant, value. Without keys no request has a tenant.
    """
    found = list(samples)
    if not any(tenant for _, tenant, _ in found):
        return labels, [(values, value) for values, _, value in found]
    return [*labels, "tenant"], [([*values, tenant], value) for values, tenant, value in found]


def single(kind: Kind, name: str, documentation: str, value: float) -> Family:
    """Return a family of one sample, without labels."""
    return kind(name, documentation, [], [([], value)])


def by_label(kind: Kind, name: str, documentation: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    """Return a family with one label. `values`: pairs of its value and that of the sample."""
    return kind(name, documentation, [label], (([key], value) for key, value in values))


def counter(name: str, documentation: str, labels: Sequence[str], samples: Samples) -> Family:
    """`name`: without `roundhouse_` and `_total`."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"roundhouse_{name}", documentation, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauge(name: str, documentation: str, labels: Sequence[str], samples: Samples) -> Family:
    """`name`: without `roundhouse_`."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"roundhouse_{name}", documentation, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def time_histogram(
    name: str, documentation: str, labels: Sequence[str], histograms: Iterable[tuple[Sequence[str], Histogram]]
) -> Family:
    """`name`: without `roundhouse_`. The histograms are in seconds."""
    counted = [(values, _buckets(histogram), histogram.total) for values, histogram in histograms]
    return histogram(name, documentation, labels, counted)


def histogram(
    name: str,
    documentation: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], Sequence[Bucket], float]],
) -> Family:
    """`samples`: label values, cumulated count per upper bound, and sum of all values."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"roundhouse_{name}", documentation, labels=labels)
    for values, buckets, total in samples:
        family.add_metric(values, buckets=buckets, sum_value=total)
    return family


def _buckets(histogram: Histogram) -> list[Bucket]:
    """Return the buckets of a histogram, with its exemplars."""
    from prometheus_client.samples import Exemplar

    buckets: list[Bucket] = list(histogram.cumulated())
    for index, each in histogram.exemplars.items():
        bound, count = buckets[index][:2]
        buckets[index] = bound, count, Exemplar({"trace_id": each.trace_id}, each.value, each.ended_s)
    return buckets
