"""A model of a task: prepared inputs in, the outputs of transformers' pipeline out."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidInput, InvalidModel, OutOfMemory
from frameworks.pytorch.device_model import DeviceModel
from frameworks.pytorch.encoders.positions import find_usable_positions
from frameworks.pytorch.tasks.pipelines import RunnablePipeline
from frameworks.pytorch.tasks.trials import Trial
from frameworks.tasks.types import TaskItem
from frameworks.types import TASK_OUTPUT, Batch, ModelSpec, TaskBatch, Value


class TaskModel(DeviceModel):
    """One thread at a time calls `infer`. Takes the items of its pipeline."""

    tokenizer = None
    image_processor = None

    def __init__(
        self, module: torch.nn.Module, spec: ModelSpec, pipeline: RunnablePipeline, trial: Trial, intra_op_threads: int
    ) -> None:
        """`trial`: of items that share a run, one for all instances."""
        super().__init__(module, torch.device(spec.device), intra_op_threads, None)
        self.pipeline: RunnablePipeline | None = pipeline
        self._trial = trial
        self.spec = spec

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer; takes a TaskBatch, returns an object array [rows] under TASK_OUTPUT."""
        if not isinstance(batch, TaskBatch):
            raise InvalidInput("inputs", f"expected {self._reads()} for this model, got tensors; send {self._reads()}")

        def run(_: torch.nn.Module) -> dict[str, Value]:
            assert self.pipeline is not None
            outputs = np.empty(batch.rows, dtype=object)
            # Assigned one by one: numpy would take a list of mappings apart.
            for row, output in enumerate(self.pipeline.run(batch.items)):
                outputs[row] = output
            return {TASK_OUTPUT: outputs}

        return self._run_on_device(run, lambda: f"a batch of {batch.rows} inputs")

    def warm_up(self) -> None:
        """Run examples, alone and together, to find out which items share a run. Raises InvalidModel."""
        assert self.pipeline is not None
        try:
            assert self._model is not None
            self._trial.decide(self.pipeline, self._run_items, partial(find_usable_positions, self._model))
            self.spec = replace(self.spec, unbatched_because=self._trial.reason)
        except OutOfMemory:
            raise
        except Exception as error:
            # A pipeline may need what this installation does not have, and says so in many types.
            raise InvalidModel(f"the model does not run on {self._reads()}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        # It holds the module too.
        self.pipeline = None
        super().close()

    def _run_items(self, items: list[TaskItem]) -> list[Mapping[str, Any]]:
        outputs = self.infer(TaskBatch(items))[TASK_OUTPUT]
        assert isinstance(outputs, np.ndarray)
        found: list[Mapping[str, Any]] = outputs.tolist()
        return found

    def _reads(self) -> str:
        assert self.spec.pipeline is not None
        return " and ".join(self.spec.pipeline.required or self.spec.pipeline.inputs)
