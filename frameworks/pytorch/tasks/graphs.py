"""Serve the task of an exported graph: the pipeline of transformers around a graph in place of a module of torch."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.modeling_outputs import BaseModelOutput

from frameworks.core.errors import InvalidInput, InvalidModel, OutOfMemory
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.pytorch.tasks.loading import LOAD_OPTIONS, describe_task, load_pipeline
from frameworks.pytorch.tasks.pipelines import RunnablePipeline
from frameworks.pytorch.tasks.trials import Trial
from frameworks.runtime import BatchModel
from frameworks.tasks.architectures import architecture_of, find_task
from frameworks.tasks.types import TaskItem
from frameworks.types import NUMPY_DTYPES, TASK_OUTPUT, Batch, ModelSpec, TaskBatch, TensorBatch, TensorType, Value

# Their pipelines call more of a model than its outputs.
_WITHOUT_GRAPHS = frozenset({"automatic-speech-recognition", "mask-generation", "text-to-audio"})
_CPU = torch.device("cpu")
# Inputs that an export may require where a processor leaves them out, and the value that has no effect.
_NEUTRAL = {"token_type_ids": 0, "attention_mask": 1, "pixel_mask": 1}


class GraphModule:
    """Stand for a model of transformers in its pipeline; a graph computes the outputs."""

    device = _CPU
    dtype = torch.float32
    name_or_path = ""
    input_modalities = ()

    def __init__(self, config: Any, graph: BatchModel) -> None:
        self.config = config
        self._graph = graph

    def __call__(self, **inputs: Any) -> BaseModelOutput:
        return self.forward(**inputs)

    def can_generate(self) -> bool:
        return False

    def forward(self, **inputs: Any) -> BaseModelOutput:
        """Run the graph; return its outputs by name. Raises as BatchModel.infer."""
        first = next(value for value in inputs.values() if isinstance(value, torch.Tensor))
        feeds: dict[str, Value] = {}
        for declared in self._graph.spec.inputs:
            value = inputs.get(declared.name)
            if value is None and declared.name in _NEUTRAL and declared.required:
                value = self._neutral(declared.name, inputs, first)
            if value is None:
                if declared.required:
                    raise InvalidInput(
                        "inputs", f'expected "{declared.name}", which the graph requires, got none; export it again'
                    )
                continue
            assert isinstance(declared.type, TensorType)
            feeds[declared.name] = value.numpy().astype(NUMPY_DTYPES[declared.type.dtype], copy=False)
        outputs = self._graph.infer(TensorBatch(feeds))
        tensors = {name: torch.from_numpy(value) for name, value in outputs.items() if isinstance(value, np.ndarray)}
        return BaseModelOutput(tensors)

    def _neutral(self, name: str, inputs: dict[str, Any], first: torch.Tensor) -> torch.Tensor:
        """Return an input without effect: like the tokens, or like the pixels without their channels."""
        like = inputs.get("input_ids")
        if like is None:
            like = first[:, 0] if first.ndim == 4 else first
        return torch.full_like(like, _NEUTRAL[name], dtype=torch.int64)


class GraphTaskModel:
    """A graph that answers its task too. One thread at a time calls `infer`; tensors are for the graph itself."""

    tokenizer = None
    image_processor = None

    def __init__(self, graph: BatchModel, spec: ModelSpec, pipeline: RunnablePipeline, trial: Trial) -> None:
        self._graph = graph
        self.spec = spec
        self.pipeline = pipeline
        self._trial = trial

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer; returns an object array [rows] under TASK_OUTPUT for a TaskBatch."""
        if not isinstance(batch, TaskBatch):
            return self._graph.infer(batch)
        outputs = np.empty(batch.rows, dtype=object)
        for row, output in enumerate(self.pipeline.run(batch.items)):
            outputs[row] = output
        return {TASK_OUTPUT: outputs}

    def warm_up(self) -> None:
        """As BatchModel.warm_up: the graph on tensors, then examples of the task."""
        self._graph.warm_up()
        try:
            self._trial.decide(self.pipeline, self._run_items, self._positions)
        except OutOfMemory:
            raise
        except Exception as error:
            raise InvalidModel(
                f"the graph does not run on inputs of its task: {type(error).__name__}: {error}"
            ) from error
        own = self._graph.spec
        self.spec = replace(own, task=self.spec.task, pipeline=self.spec.pipeline)

    def on_idle(self) -> None:
        """As BatchModel.on_idle."""
        self._graph.on_idle()

    def close(self) -> None:
        """As BatchModel.close."""
        self._graph.close()

    def _positions(self, run: Callable[[], object], num_tokens: int) -> int | None:
        """Return the bound that config.json states: a graph shows no tables to a trial."""
        most = getattr(self.pipeline.config, "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else None

    def _run_items(self, items: list[TaskItem]) -> list[Any]:
        rows = self.infer(TaskBatch(items))[TASK_OUTPUT]
        assert isinstance(rows, np.ndarray)
        return list(rows)


def with_task(instances: Sequence[BatchModel], entry: OnnxModelEntry, folder: Path) -> list[BatchModel] | None:
    """Return the instances with the task of their folder; None where a folder has none. Raises InvalidModel."""
    task = find_task(folder, entry.task)
    if task is None:
        return None
    if task in _WITHOUT_GRAPHS:
        raise InvalidModel(
            f"{folder}: expected weights of transformers for {task}, got a graph; serve the folder of those"
        )
    config = AutoConfig.from_pretrained(str(folder), **LOAD_OPTIONS)
    # A pipeline looks up the name of the class.
    module_class = type(architecture_of(folder), (GraphModule,), {})
    trial = Trial(task)
    described = describe_task(task, config)
    first = load_pipeline(folder, task, module_class(config, instances[0]))
    models: list[BatchModel] = []
    for graph in instances:
        pipeline = copy.copy(first)
        pipeline.model = module_class(config, graph)
        spec = replace(graph.spec, task=task, pipeline=described)
        models.append(GraphTaskModel(graph, spec, RunnablePipeline(pipeline, task), trial))
    return models
