"""Settings of `[ray]`: a deployment on a Ray cluster."""

from typing import Annotated

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator

from frameworks.core.settings.values import ReplicaRange, as_replicas, checked_replicas
from memory.settings import SETTINGS_RULES
from memory.sizes import Bytes


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

    def group(self, name: str) -> RayGroupSettings:
        """Return a group by its name; the check of the config refuses others."""
        return next(each for each in self.groups if each.name == name)
