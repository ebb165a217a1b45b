"""Load the model once in a process of the cluster: to describe it, to check the command, and to measure its memory."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.config import LoadedSettings
from extensions.offline.contract import RequestRefused, RowAnswer, RunFailed, RunModelDescription, WrongCommand
from extensions.offline.ray.placement import Limits, Node, WorkerNeeds
from extensions.offline.ray.worker import ModelThread


class _Probe:
    """An actor. Errors are returned: Ray would wrap those that are raised."""

    def __init__(self, loaded: LoadedSettings, name: str, cpus: int) -> None:
        self._thread: ModelThread | None = None
        self._failed = RunFailed("MODEL: not loaded")
        try:
            self._thread = ModelThread(loaded, name, cpus)
        except RunFailed as error:
            self._failed = error

    def describe(self) -> tuple[RunModelDescription, WorkerNeeds] | RunFailed:
        if self._thread is None:
            return self._failed
        return self._thread.model.description, self._thread.needs

    def answer(self, body: bytes) -> RowAnswer | RequestRefused | RunFailed | WrongCommand:
        if self._thread is None:
            return self._failed
        try:
            return self._thread.wait(self._thread.model.answer(body))
        except (RequestRefused, RunFailed, WrongCommand) as error:
            return error


class RayModel:
    """A RunModel in a worker of the cluster, which is ended before those of the run start. Owned by the event loop."""

    concurrency = 1
    rows_per_request = 1

    def __init__(self, probe: Any, description: RunModelDescription, needs: WorkerNeeds) -> None:
        self._probe = probe
        self.description = description
        self.needs = needs

    async def answer(self, body: bytes) -> RowAnswer:
        answer: RowAnswer = await _result(self._probe.answer.remote(body))
        return answer

    def close(self) -> None:
        """End the worker, so that its resources are free. May be called twice."""
        if self._probe is not None:
            ray.kill(self._probe)
            self._probe = None


async def open_ray_model(loaded: LoadedSettings, name: str, limits: Limits, nodes: list[Node]) -> RayModel:
    """Load the model in a worker with a GPU if the cluster has one and the settings use it. Raises RunFailed."""
    cpus = limits.cpus or 1
    gpus = 1 if any(node.gpus >= 1 for node in nodes) and _may_use_gpu(loaded) else 0
    # Here if this machine has the resources: the run is resumed by the sizes and times of this machine's files.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    # Its annotations lack this strategy.
    remote: Any = ray.remote
    actor = remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, scheduling_strategy=here)(_Probe)
    probe = actor.remote(loaded, name, cpus)
    try:
        description, needs = await _result(probe.describe.remote())
    except BaseException:
        ray.kill(probe)
        raise
    return RayModel(probe, description, needs)


def _may_use_gpu(loaded: LoadedSettings) -> bool:
    """Whether a model of the settings, which have only those of the run, may use a GPU."""
    models = loaded.settings.models
    devices = [each.device for each in (*models.onnx_models, *models.torch_models)]
    return loaded.settings.performance.enable_gpu and any(device != "cpu" for device in devices)


async def _result(reference: Any) -> Any:
    """Wait for a call. Raises the error that it returned."""
    try:
        result = await asyncio.wrap_future(reference.future())
    except RayError as error:
        raise RunFailed(
            f"MODEL: the worker that loads it ended: {type(error).__name__}; see the logs of Ray"
        ) from error
    if isinstance(result, Exception):
        raise result
    return result
