"""Choose the share of a GPU that Ray reserves for a replica, so that several models run on one GPU."""

import math
from pathlib import Path

from extensions.ray.config import ReplicaConfig
from extensions.ray.replica.files import newest_files
from frameworks.core.devices import SHARE_FOR_MODELS, Device, DeviceManager, ModelNeeds, SystemProbe
from frameworks.engine.process.host.model_source import ModelSource

_STEPS = 100
"""Shares are rounded up to hundredths: Ray adds them up."""


def gpu_share(needs: ModelNeeds, gpu: Device) -> float:
    """Return the share of a GPU for a replica, as `num_gpus`; 0.0 for a model that runs on no GPU.

    `needs`: estimated from the files, see Registry.needs. The rest of the memory is for activations, as on one machine:
    a model that needs more than SHARE_FOR_MODELS of it gets a whole GPU.
    """
    if gpu.kind != "cuda" or "cuda" not in needs.usable or needs.wanted == "cpu":
        return 0.0
    usable_bytes = gpu.total_bytes * SHARE_FOR_MODELS
    return min(1.0, math.ceil(_STEPS * needs.accelerator_bytes / usable_bytes) / _STEPS)


def measured_share(config: ReplicaConfig, path: str, devices: DeviceManager | None = None) -> float:
    """Return the share of a GPU of this node for the version at a path, by the headers of its files. Blocks.

    `devices`: None for those of this node. Raises InvalidModel and SourceUnavailable.
    """
    devices = devices or DeviceManager(SystemProbe(), config.uses_gpu)
    gpus = [each for each in devices.devices() if each.kind == "cuda"]
    if not gpus:
        return 0.0
    files: Path = newest_files(config, path)
    needs = ModelSource().prepare(config.framework, config.entry, files, config.settings)
    return max(gpu_share(needs, each) for each in gpus)
