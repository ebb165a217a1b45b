"""A loaded model in service: its instances, each on a thread of its own, and the dispatcher before them."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from frameworks.models.identity import ModelIdentity
from frameworks.runtime import BatchModel, LoadedModel, StepModel
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.worker import StepWorker


class BatchServing(NamedTuple):
    """The first instance of a model that answers batches, for what all have in common; the dispatcher of all."""

    model: BatchModel
    dispatcher: Dispatcher


class StepServing(NamedTuple):
    """The same of a model that generates text."""

    model: StepModel
    dispatcher: StepDispatcher


Serving = BatchServing | StepServing


def take_into_service(model: ModelIdentity, version: str, instances: LoadedModel) -> Serving:
    """Of instances that are loaded and warmed up. Called in the event loop."""
    runs = model.runs[version]
    if instances[0].spec.task == "generate":
        generating = cast("Sequence[StepModel]", instances)
        workers = [StepWorker(model.name, instance, runs.generated) for instance in generating]
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
            model.arrays,
        ),
    )
