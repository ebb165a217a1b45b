"""Choose the text format of /metrics, and write the page in it: Prometheus text, or OpenMetrics with exemplars.

prometheus_client is imported at the first scrape, so that it does not delay the start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.admin.metrics.families import Family

OPEN_METRICS = "application/openmetrics-text"
_VERSIONS = ("", "1.0.0")
_TEXT_RANGES = frozenset({"text/plain", "text/*", "*/*"})


class _Registry(NamedTuple):
    """Stands in for prometheus_client's registry."""

    families: Iterable[Family]

    def collect(self) -> Iterable[Family]:
        return self.families


class MetricsPage(NamedTuple):
    """The body of a scrape."""

    content: bytes
    content_type: str


def metrics_page(families: Iterable[Family], accept: Sequence[str]) -> MetricsPage:
    """Return the page in the format that the Accept headers prefer."""
    if wants_open_metrics(accept):
        from prometheus_client.openmetrics import exposition

        registry = _Registry(_with_canonical_bounds(families))
        # All names are ASCII. The other ways of escaping look at each character of each sample: three times the time.
        content = exposition.generate_latest(registry, exposition.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return MetricsPage(content, exposition.CONTENT_TYPE_LATEST)
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return MetricsPage(generate_latest(_Registry(families)), CONTENT_TYPE_LATEST)


def with_labels(families: Iterable[Family], labels: Mapping[str, str]) -> Iterator[Family]:
    """Yield the families, with more labels in each sample."""
    for family in families:
        for sample in family.samples:
            sample.labels.update(labels)
        yield family


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


def _with_canonical_bounds(families: Iterable[Family]) -> Iterator[Family]:
    """Yield the families with the bounds of buckets as OpenMetrics writes floats: 1.0 instead of 1."""
    from prometheus_client.utils import floatToGoString

    for family in families:
        for sample in family.samples if family.type == "histogram" else ():
            if "le" in sample.labels:
                sample.labels["le"] = floatToGoString(sample.labels["le"])  # type: ignore[no-untyped-call]
        yield family
