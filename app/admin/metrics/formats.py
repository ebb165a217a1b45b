"""Choose the text format of /metrics, and write the page in it: Prometheus text, or OpenMetrics with exemplars.

prometheus_client is imported at the first scrape, so that it does not delay the start.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.admin.metrics.families import Family

OPEN_METRICS = "application/openmetrics-text"
_VERSIONS = ("", "1.0.0")
_TEXT_RANGES = frozenset({"text/plain", "text/*", "*/*"})


class Collector(Protocol):
    """Stands in for prometheus_client's registry."""

    def collect(self) -> Iterator[Family]: ...


@dataclass(frozen=True, slots=True)
class Labelled:
    """The families of a collector, with more labels in each sample."""

    collector: Collector
    labels: Mapping[str, str]

    def collect(self) -> Iterator[Family]:
        for family in self.collector.collect():
            for sample in family.samples:
                sample.labels.update(self.labels)
            yield family


@dataclass(frozen=True, slots=True)
class Page:
    """The body of a scrape."""

    content: bytes
    content_type: str


def metrics_page(collector: Collector, accept: Sequence[str]) -> Page:
    """Return the page in the format that the Accept headers prefer."""
    if wants_open_metrics(accept):
        return _open_metrics(collector)
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Page(generate_latest(collector), CONTENT_TYPE_LATEST)


def wants_open_metrics(accept: Sequence[str]) -> bool:
    """Whether the Accept headers name OpenMetrics 1.0 and prefer no plain text."""
    open_metrics = text = 0.0
    for name, parameters in _media_ranges(accept):
        quality = _quality(parameters.get("q", "1"))
        if name == OPEN_METRICS and parameters.get("version", "") in _VERSIONS:
            open_metrics = max(open_metrics, quality)
        elif name in _TEXT_RANGES:
            text = max(text, quality)
    return open_metrics > 0.0 and open_metrics >= text


def _media_ranges(accept: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the parameters of each media range."""
    for part in ",".join(accept).split(","):
        name, *parameters = part.split(";")
        pairs = (each.partition("=") for each in parameters)
        yield name.strip().lower(), {key.strip().lower(): value.strip(' \t"') for key, _, value in pairs}


def _quality(text: str) -> float:
    """Return a weight of RFC 9110; 0.0 for one that is not valid."""
    digits = text[:5].replace(".", "", 1)
    return min(1.0, float(text[:5])) if digits.isascii() and digits.isdecimal() else 0.0


def _open_metrics(collector: Collector) -> Page:
    from prometheus_client.openmetrics.exposition import ALLOWUTF8, CONTENT_TYPE_LATEST, generate_latest

    # All names are ASCII. The other ways of escaping look at each character of each sample, in three times the time.
    content = generate_latest(_CanonicalBounds(collector), ALLOWUTF8)  # type: ignore[no-untyped-call]
    return Page(content, CONTENT_TYPE_LATEST)


class _CanonicalBounds:
    """The families of a collector, with the bounds of buckets as OpenMetrics writes numbers: 1.0 instead of 1."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Family]:
        from prometheus_client.utils import floatToGoString

        for family in self._collector.collect():
            for sample in family.samples if family.type == "histogram" else ():
                if "le" in sample.labels:
                    sample.labels["le"] = floatToGoString(sample.labels["le"])  # type: ignore[no-untyped-call]
            yield family
