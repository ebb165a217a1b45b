"""Run a loaded model: each instance on a worker thread, behind one dispatcher."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from frameworks.models.identity import ModelIdentity
from frameworks.runtime import BatchModel, LoadedModel, StepModel
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.worker import StepWorker


class BatchServing(NamedTuple):
    """The first instance of a batch model, for what all instances share, and the dispatcher of all instances."""

    model: BatchModel
    dispatcher: Dispatcher


class StepServing(NamedTuple):
    """The same for a generating model."""

    model: StepModel
    dispatcher: StepDispatcher


Serving = BatchServing | StepServing


def start_serving(model: ModelIdentity, version: str, instances: LoadedModel) -> Serving:
    """Start the workers of instances that are warmed up. Call it in the event loop."""
    runs = model.runs[version]
    if instances[0].spec.task == "generate":
        generating = cast("Sequence[StepModel]", instances)
        clock = model.devices.of(instances[0].spec.device).clock
        workers = [StepWorker(model.name, instance, runs.generated, clock) for instance in generating]
        return StepServing(generating[0], StepDispatcher(model.name, workers))
    answering = cast("Sequence[BatchModel]", instances)
    return BatchServing(
        answering[0],
        Dispatcher(
            model.name,
            [BatchWorker(model.name, instance) for instance in answering],
            answering[0].spec,
            model.limits,
            model.ageing_s,
            runs.batches,
            model.devices.of(answering[0].spec.device),
        ),
    )
