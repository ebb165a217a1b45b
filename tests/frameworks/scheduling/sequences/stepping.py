"""A model with a state, and its sequences over a real dispatcher, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.onnx.model import OnnxModel
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts, Outputs
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.sequences.sequences import Sequences
from frameworks.types import Array, SequenceId, SequenceStep, TensorBatch
from tests.frameworks.models.loading import load_onnx
from tests.support.clocks import Clock
from tests.support.models import onnx_graphs

MAX_ROWS = 32


def load(folder: Path, graph: onnx.ModelProto, **entry: Any) -> OnnxModel:
    """Load and warm up a graph, by default with `state = "auto"`."""
    model = cast(OnnxModel, load_onnx(onnx_graphs.save(graph, folder), **{"state": "auto", **entry}))
    model.warm_up()
    return model


class Stepping:
    """The sequences of one model, with a clock that the test sets."""

    def __init__(self, model: OnnxModel, is_reloaded: bool = False) -> None:
        self.counts = BatchCounts()
        self.clock = Clock()
        self.dispatcher = Dispatcher(
            "m", [BatchWorker("m", model)], model.spec, BatchLimits(MAX_ROWS), 1.0, self.counts
        )
        self.sequences = Sequences("m", model.spec, model.first_states, self.dispatcher.submit, is_reloaded, self.clock)

    def send(
        self,
        number: SequenceId,
        inputs: dict[str, Array],
        start: bool = False,
        end: bool = False,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> "Any":
        """Return the future of a step."""
        batch = TensorBatch(dict(inputs), None, SequenceStep(number, start, end))
        return self.sequences.submit(batch, tenant=tenant)


@asynccontextmanager
async def stepping(model: OnnxModel, is_reloaded: bool = False) -> AsyncIterator[Stepping]:
    running = Stepping(model, is_reloaded)
    try:
        yield running
        running.sequences.check_integrity()
    finally:
        await running.dispatcher.close()


def number_of(outputs: Outputs, name: str) -> float:
    """Return the only number of an output."""
    value = outputs[name]
    assert isinstance(value, np.ndarray)
    return float(value.item())
