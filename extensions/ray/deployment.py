"""The Serve deployments of models and of groups of models."""

import math
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from extensions.ray.config import GroupConfig, ReplicaConfig
from extensions.ray.replica.placement import measured_share
from extensions.ray.replica.replica import ModelReplica
from extensions.ray.router import PublishingRouter

MEASURE_S = 600.0
"""Limit of the time in which the memory of a model is estimated; its files may have to be fetched."""
_MEASURING_GPUS = 0.01
DRAIN_S = 120.0
"""Time limit for a stopping replica to answer its requests."""


def deployment_name(model: str) -> str:
    """Return the name of the deployment of a model. Ray uses it in names of files, so it has no slash."""
    return f"model-{model.replace('/', '~')}"  # no name of a model has a tilde


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds of the replicas, and when their number changes. With `minimum` 0 the deployment scales to zero.

    `target_queued_s`: seconds of queued work for each replica, by the learned cost of requests. `up_delay_s`,
    `down_delay_s`: for so long the wanted number has to be larger or smaller.
    """

    minimum: int
    maximum: int
    target_queued_s: float = 1.0
    up_delay_s: float = 5.0
    down_delay_s: float = 300.0
    look_back_s: float = 15.0


def model_deployment(
    config: ReplicaConfig,
    replicas: int | Scaling = 1,
    num_cpus: float = 1.0,
    num_gpus: float | None = 0.0,
    drain_s: float = DRAIN_S,
) -> serve.Application:
    """Return the deployment of a model, bound to its config. `drain_s`: as DRAIN_S.

    `num_cpus`, `num_gpus`: resources that Ray reserves on a node for each replica. `num_gpus` None: as `default_gpus`.
    """
    if num_gpus is None:
        num_gpus = default_gpus(config)
    name = deployment_name(config.engine.name)
    return _deployment(name, config, replicas, num_cpus, num_gpus, drain_s)


def group_deployment(
    config: GroupConfig, replicas: int | Scaling, num_cpus: float, num_gpus: float, drain_s: float = DRAIN_S
) -> serve.Application:
    """Return the deployment of the models of a group, as `model_deployment`."""
    return _deployment(f"group-{config.name}", config, replicas, num_cpus, num_gpus, drain_s)


def _deployment(
    name: str,
    config: ReplicaConfig | GroupConfig,
    replicas: int | Scaling,
    num_cpus: float,
    num_gpus: float,
    drain_s: float,
) -> serve.Application:
    router: Any = PublishingRouter
    options: Any = serve.deployment(
        name=name,
        num_replicas=replicas if isinstance(replicas, int) else None,
        autoscaling_config=None if isinstance(replicas, int) else _autoscaling(replicas),
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        # Requests are no calls; only `wake` is one.
        max_ongoing_requests=1000,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        request_router_config=RequestRouterConfig(request_router_class=router),
    )
    application: serve.Application = options(ModelReplica).bind(_with_threads(config, num_cpus))
    return application


def _with_threads(config: ReplicaConfig | GroupConfig, num_cpus: float) -> ReplicaConfig | GroupConfig:
    """Return the config with as many threads as Ray reserves CPUs, unless its settings name a number."""
    performance = config.settings.performance
    if performance.intra_op_threads is not None:
        return config
    threads = {"intra_op_threads": max(1, math.ceil(num_cpus))}
    settings = config.settings.model_copy(update={"performance": performance.model_copy(update=threads)})
    return replace(config, settings=settings)


def default_gpus(config: ReplicaConfig) -> float:
    """Return the share of a GPU for a replica, measured on a node of the cluster that has one; 0.0 where none has.

    Blocks; call it in a process that is connected to the cluster. A model without a version in its config is measured
    at the path of its entry. Raises InvalidModel and SourceUnavailable, and errors of Ray after MEASURE_S.
    """
    resources: dict[str, float] = ray.cluster_resources() if ray.is_initialized() else {}  # type: ignore[no-untyped-call]
    if not resources.get("GPU"):
        return 0.0
    path = config.versions[-1][1] if config.versions else str(config.entry.path)
    measure: Any = ray.remote(num_gpus=_MEASURING_GPUS, num_cpus=0)(measured_share)
    share: float = ray.get(measure.remote(config, path), timeout=MEASURE_S)
    return share


def _autoscaling(scaling: Scaling) -> AutoscalingConfig:
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function="extensions.ray.autoscaling:QueuedSeconds",
        policy_kwargs={"target_s": scaling.target_queued_s},
    )
    return AutoscalingConfig(
        min_replicas=scaling.minimum,
        max_replicas=scaling.maximum,
        upscale_delay_s=scaling.up_delay_s,
        downscale_delay_s=scaling.down_delay_s,
        look_back_period_s=scaling.look_back_s,
        policy=policy,
    )
