"""Build the Serve application of a config file: a deployment for each model or group, bound to the ingress."""

import os
from collections.abc import Iterable
from pathlib import Path

from ray import serve

from app.auth.keys import Key, environment_key
from app.config import API_KEY_VARIABLE, ConfigError, ConfigIssue, LoadedSettings, load_settings
from app.extension import open_remote
from app.server.keys import open_keys
from app.server.manager import build_manager, registry_settings
from extensions.ray.checks import check_for_ray, for_ingress
from extensions.ray.config import GroupConfig, ReplicaConfig
from extensions.ray.deployment import Scaling, group_deployment, model_deployment
from extensions.ray.ingress.ingress import IngressConfig, ingress_deployment
from extensions.ray.settings import RayGroupSettings, ray_settings
from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.settings.values import ReplicaRange
from frameworks.models.versions.slot import ModelSlot
from memory.tensor_pool import TensorPool

_ARGUMENT = "config"


def configured_application(arguments: dict[str, str]) -> serve.Application:
    """Build the application of the config file that the argument `config` names. Raises ConfigError."""
    unknown = sorted(arguments.keys() - {_ARGUMENT})
    if unknown or _ARGUMENT not in arguments:
        got = ", ".join(unknown) or "none"
        message = f"expected the argument {_ARGUMENT}, got {got}; add {_ARGUMENT}=config.toml"
        raise ConfigError([ConfigIssue("arguments", None, _ARGUMENT, message, "missing")])
    loaded = load_settings(Path(arguments[_ARGUMENT]), os.environ)
    return build_application(loaded, os.environ.get(API_KEY_VARIABLE, ""))


def build_application(loaded: LoadedSettings, api_key: str) -> serve.Application:
    """Return the application of settings. `api_key`: the text of ROUNDHOUSE_API_KEY, or "". Raises ConfigError.

    The settings travel with it. The files that they name must exist on the nodes. In a process that is connected to a
    cluster with GPUs it measures the share of models without `num_gpus`, and raises as `default_gpus`.
    """
    check_for_ray(loaded)
    open_keys(loaded, api_key)
    key: Key | None = environment_key(api_key) if api_key else None
    drain_s = loaded.settings.server.drain_timeout_s
    # Registers the models as the ingress will, and loads none.
    manager = build_manager(loaded, DeviceManager(SystemProbe(), enable_gpu=False), TensorPool(loaded.settings.memory))
    models = {
        slot.name: model_deployment(
            _replica_config(loaded, slot),
            replicas=_replicas(loaded, slot.entry.replicas),
            num_cpus=1.0 if slot.entry.num_cpus is None else slot.entry.num_cpus,
            num_gpus=slot.entry.num_gpus,
            drain_s=drain_s,
        )
        for slot in manager.slots
        # Each ingress runs the steps of its composite models.
        if slot.entry.replica_group is None and not slot.identity.is_composite
    }
    groups = {
        group.name: group_deployment(
            _group_config(loaded, group, manager.slots),
            replicas=_replicas(loaded, group.replicas),
            num_cpus=group.num_cpus,
            num_gpus=group.num_gpus,
            drain_s=drain_s,
        )
        for group in ray_settings(loaded.settings).groups
    }
    return ingress_deployment(IngressConfig(for_ingress(loaded), key), models, groups)


def _replicas(loaded: LoadedSettings, replicas: int | ReplicaRange | None) -> int | Scaling:
    ray = ray_settings(loaded.settings)
    if not isinstance(replicas, ReplicaRange):
        return replicas or 1
    return Scaling(replicas.min, replicas.max, ray.target_queued_s, down_delay_s=ray.scale_down_delay_s)


def _group_config(loaded: LoadedSettings, group: RayGroupSettings, slots: Iterable[ModelSlot]) -> GroupConfig:
    settings = loaded.settings
    return GroupConfig(
        group.name,
        tuple(_replica_config(loaded, slot) for slot in slots if slot.entry.replica_group == group.name),
        registry_settings(loaded),
        group.max_model_memory,
        settings.scheduling.min_residency_s,
        settings.logging.level,
    )


def _replica_config(loaded: LoadedSettings, slot: ModelSlot) -> ReplicaConfig:
    versions = () if slot.entry.load == "lazy" else tuple((name, str(slot.versions[name].path)) for name in slot.served)
    update: dict[str, object] = {"isolation": "none"}
    if not slot.has_address:
        update["path"] = slot.path
    return ReplicaConfig(
        slot.framework,
        slot.entry.model_copy(update=update),
        slot.identity.engine_settings,
        registry_settings(loaded),
        versions,
        loaded.settings.logging.level,
        loaded.settings.models.max_download_bytes,
        open_remote,
    )
