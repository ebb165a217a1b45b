"""Check which models share the replicas of which `[[ray.groups]]`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from app.config.issues import format_value, nearest
from app.config.source import Source

_OF_REPLICAS = ("replicas", "num_cpus", "num_gpus")
"""Keys that the group has for all of its models."""


def check_replica_groups(source: Source) -> None:
    """Add an issue for each group without a model or with the name of another one, and for each model that cannot be
    in its group.
    """
    names = [name for _, name in _groups(source)]
    used: set[str] = set()
    for location, entry in source.model_entries():
        name = entry.get("replica_group") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        used.add(name)
        if name not in names:
            near = nearest(name, names)
            hint = f'did you mean "{near}"?' if near else "add it there, or remove this key"
            message = f"expected the name of one of [[ray.groups]], got {format_value(name)}; {hint}"
            source.add_issue((*location, "replica_group"), message, "invalid")
        for key, message in _refused_keys(entry):
            source.add_issue((*location, key), message, "invalid")
    counts = Counter(names)
    for index, name in _groups(source):
        if counts[name] > 1:
            message = f"expected unique names of groups, got {format_value(name)} twice; choose another name"
            source.add_issue(("ray", "groups", index, "name"), message, "duplicate")
        elif name not in used:
            message = f"expected a model with replica_group = {format_value(name)}, got none; add the key to its models"
            source.add_issue(("ray", "groups", index, "name"), message, "invalid")


def _groups(source: Source) -> Iterator[tuple[int, str]]:
    ray = source.document.get("ray")
    groups = ray.get("groups") if isinstance(ray, dict) else None
    for index, group in enumerate(groups if isinstance(groups, list | tuple) else []):
        name = group.get("name") if isinstance(group, dict) else None
        if isinstance(name, str):
            yield index, name


def _refused_keys(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if entry.get("load", "startup") != "lazy":
        yield "load", f'expected "lazy" beside replica_group, got {format_value(entry.get("load", "startup"))}; set it'
    for key in _OF_REPLICAS:
        if entry.get(key) is not None:
            message = (
                f"expected no value beside replica_group, got {format_value(entry[key])}; set it in [[ray.groups]]"
            )
            yield key, message
