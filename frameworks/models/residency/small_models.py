"""Decide which models every worker of a server loads: small graphs whose runs are shorter than a hand-over."""

import time
from collections.abc import Callable
from typing import cast

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import RoundhouseError
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.runtime import BatchModel, LoadedModel, ModelEntry
from frameworks.scheduling.batch.inline import LIGHT_S
from frameworks.types import TensorBatch, Value
from memory.sizes import format_size

SMALL_BYTES = 64 * 1024**2
"""Limit of the memory that a small model needs, as estimated from its files."""

_MAX_RUNS = 20
_MAX_MEASURED_S = 0.05


def reason_of_framework(framework: str) -> str | None:
    """Return why no model of a framework is loaded in every worker; None for one with small models."""
    return None if framework == "onnx" else f"no {framework} model is small"


def reason_of_state(entry: ModelEntry) -> str | None:
    """Return why a model of this entry cannot be loaded in every worker; None for one without a state."""
    return "all steps of a sequence meet there" if isinstance(entry, OnnxModelEntry) and entry.state else None


def reason_of_size(needs: ModelNeeds) -> str | None:
    """Return why a model is too large for every worker; None if it is small."""
    if needs.host_bytes <= SMALL_BYTES:
        return None
    return f"it needs {format_size(needs.host_bytes)}, a small model at most {format_size(SMALL_BYTES)}"


def reason_of_device(device: Device) -> str | None:
    """Return why a model on a device is not loaded in every worker; None for the CPU."""
    return None if device.kind == "cpu" else f"it runs on {device.id}"


def reason_of_runs(instances: LoadedModel) -> str | None:
    """Return why the runs of a model that is warmed up are too long for the event loop; None if they are light. Blocks.

    As on the loop, the CPU time of the fastest run decides.
    """
    model = instances[0]
    if model.spec.task != "tensor":
        return "it computes texts"
    # Of models of ONNX graphs: a value for every required input.
    example_inputs: Callable[[], dict[str, Value]] | None = getattr(model, "example_inputs", None)
    if example_inputs is None:
        return "its runs cannot be measured"
    try:
        fastest_s = _fastest_run_s(cast(BatchModel, model), TensorBatch(example_inputs()))
    except RoundhouseError as error:
        return f"its runs cannot be measured: {error.public}"
    if fastest_s < LIGHT_S:
        return None
    return f"a run takes {1000 * fastest_s:.2f} ms, that of a small model less than {1000 * LIGHT_S:g} ms"


def _fastest_run_s(model: BatchModel, batch: TensorBatch) -> float:
    """Return the CPU seconds of this thread in the fastest of some runs."""
    until_s = time.perf_counter() + _MAX_MEASURED_S
    fastest_s = float("inf")
    for _ in range(_MAX_RUNS):
        started_s = time.thread_time()
        model.infer(batch)
        fastest_s = min(fastest_s, time.thread_time() - started_s)
        if time.perf_counter() > until_s:
            break
    return fastest_s
