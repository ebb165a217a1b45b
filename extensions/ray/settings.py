"""Settings of `[ray]`: a deployment on a Ray cluster, and which models share the replicas of which group."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator

from app.config.issues import format_value, nearest
from app.config.loading import Settings
from app.config.source import Source
from app.config.tables import ConfigTable
from frameworks.core.settings.values import ReplicaRange, as_replicas, checked_replicas
from memory.settings import SETTINGS_RULES
from memory.sizes import Bytes

_OF_REPLICAS = ("replicas", "num_cpus", "num_gpus")
"""Keys that the group has for all of its models."""


class RayGroupSettings(BaseModel):
    """One `[[ray.groups]]` entry: replicas that several lazy models share. Each model names it in `replica_group`."""

    model_config = SETTINGS_RULES

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Name that the models of the group have in `replica_group`."""
    max_model_memory: Annotated[Bytes, Field(ge=1)]
    """Maximum bytes that all loaded models together take on each device of one replica. A replica evicts the model
    that was used least recently."""
    replicas: Annotated[
        int | ReplicaRange, PlainValidator(checked_replicas), PlainSerializer(as_replicas, return_type=int | dict)
    ] = 1
    """Number of replicas, each a process on any node; or `{ min = 0, max = 4 }`, as of a model."""
    num_cpus: Annotated[float, Field(ge=0, le=1024)] = 1.0
    """CPUs that Ray reserves for each replica."""
    num_gpus: Annotated[float, Field(ge=0, le=64)] = 0.0
    """GPUs that Ray reserves for each replica. With 0 the models run on the CPU."""


class RaySettings(BaseModel):
    """`[ray]`: how `roundhouse deploy` runs the server on a Ray cluster. `roundhouse serve` ignores it."""

    model_config = SETTINGS_RULES

    application: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "roundhouse"
    """Name of the application in Ray Serve. A second deployment under the same name is a rolling update."""
    ingress_replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of processes that listen at `[server]` `host` and `port`, each on any node. Quotas, the response cache and
    management calls apply to each alone."""
    ingress_cpus: Annotated[float, Field(ge=0, le=1024)] = 1.0
    """CPUs that Ray reserves for each of them."""
    target_queued_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """Queued work for each replica of a model with `replicas = { min, max }`, in seconds by the learned cost of its
    requests. Ray adds replicas above it."""
    scale_down_delay_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Time with too little work after which Ray removes replicas of such a model."""
    ingress_resource: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Custom resource of the nodes that may run them; each takes 0.001 of it. None: any node."""
    groups: Annotated[tuple[RayGroupSettings, ...], Field(strict=False)] = ()
    """Replicas that several lazy models share, a table each: `[[ray.groups]]`. Default: none."""


def ray_settings(settings: Settings) -> RaySettings:
    """Return `[ray]` of the settings."""
    return settings.table("ray", RaySettings())


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


TABLE = ConfigTable("ray", RaySettings, RaySettings(), check_replica_groups)
