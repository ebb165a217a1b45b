"""Yield the metric families of collections."""

from collections.abc import Iterator, Sequence

from app.admin.metrics.families import Family, by_label, by_tenant, counter, gauge, time_histogram
from app.observability.visible_counts import Counts
from extensions.search.collections.contract import CollectionInfo


def collection_families(infos: Sequence[CollectionInfo], counts: Counts) -> Iterator[Family]:
    """Yield the families of the collections that a principal may see, and of its requests to them."""
    visible = {info.name for info in infos}
    yield counter(
        "collection_requests",
        "Completed requests to collections, by operation (search, upsert, delete) and HTTP status.",
        *by_tenant(
            ["collection", "operation", "code"],
            (
                ([name, operation, str(status)], tenant, count)
                for (name, operation, status, tenant), count in counts.operations()
                if name in visible
            ),
        ),
    )
    yield time_histogram(
        "collection_seconds",
        "Time of successful requests to collections, from the first byte to the response.",
        ["collection", "operation"],
        ((list(key), histogram) for key, histogram in counts.operation_seconds().items() if key[0] in visible),
    )
    yield by_label(gauge, "collection_rows", "Records of a collection.", "collection", _each(infos, "rows"))
    yield gauge(
        "collection_bytes",
        "Size of a collection: its vectors, filter columns and index in memory, and its files.",
        ["collection", "kind"],
        [
            ([info.name, kind], size)
            for info in infos
            for kind, size in (("memory", info.memory_bytes), ("disk", info.disk_bytes))
        ],
    )
    if counts.tenant is None:
        for kind, name, documentation, field in (
            (counter, "queries", "Queries that were searched for.", "searches"),
            (
                counter,
                "batches",
                "Products of a collection with queries; queries that wait together share one.",
                "batches",
            ),
            (gauge, "waiting", "Queries that wait for a search.", "waiting"),
        ):
            yield by_label(kind, f"collection_{name}", documentation, "collection", _each(infos, field))


def _each(infos: Sequence[CollectionInfo], field: str) -> list[tuple[str, float]]:
    return [(info.name, getattr(info, field)) for info in infos]
