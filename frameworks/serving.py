"""A loaded model in service: its instances, each on a thread of its own, and the dispatcher before them."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from frameworks.identity import ModelIdentity
from frameworks.runtime import BatchModel, LoadedModel, StepModel
from frameworks.scheduling.batch_lane import BatchLane
from frameworks.scheduling.dispatcher import Dispatcher
from frameworks.scheduling.step_dispatcher import StepDispatcher
from frameworks.scheduling.step_lane import StepLane


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
        lanes = [StepLane(model.name, instance, runs.generated) for instance in generating]
        return StepServing(generating[0], StepDispatcher(model.name, lanes))
    answering = cast("Sequence[BatchModel]", instances)
    return BatchServing(
        answering[0],
        Dispatcher(
            model.name,
            [BatchLane(model.name, instance) for instance in answering],
            answering[0].spec,
            model.limits,
            model.ageing_s,
            runs.batches,
            model.arrays,
        ),
    )
