"""Find out by a trial which prepared inputs share a run: of any length, of one length, or none."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.tasks.examples import EXAMPLES, MASK, Example
from frameworks.pytorch.tasks.pipelines import RunnablePipeline
from frameworks.tasks.types import TaskItem

# Relative to the largest number of an output: a larger batch adds in another order.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

_SCORES = 1e-2  # of predictions, whose outputs have been compared

Run = Callable[[list[TaskItem]], list[Any]]
Reference = tuple[list[Any], Any]
FindPositions = Callable[[Callable[[], object], int], int | None]


class Trial:
    """The trial of one model, for all of its instances."""

    def __init__(self, task: str) -> None:
        self._examples = EXAMPLES[task]
        self._is_decided = False
        self.reason: str | None = None
        """Why items do not share a run; None where they do."""

    def decide(self, pipeline: RunnablePipeline, run: Run, find_positions: FindPositions | None = None) -> None:
        """Set `max_tokens`, `pads` and `shares` of the pipeline.

        `find_positions`: returns the largest number of tokens of a text, from a run of one with so many tokens. Raises
        what `run` raises for single items, and InvalidInput.
        """
        if self._is_decided:
            run(_items(pipeline, self._examples[0])[:1])
            return
        if find_positions is not None:
            self._limit_tokens(pipeline, run, find_positions)
        if pipeline.runs_alone:
            _reference(pipeline, run, self._examples[0])
            self.reason, self._is_decided = "each input has noise of its own", True
            return
        references = [_reference(pipeline, run, example) for example in self._examples[:2]]
        pipeline.shares = pipeline.pads = True
        # The longer one first: a model that pads or masks all rows as the first one changes a row.
        mixed = [(self._examples[i], references[i]) for i in (1, 0)]
        if not _agree(pipeline, run, mixed):
            pipeline.pads = False
            if _items(pipeline, self._examples[1])[0].shape is None:
                self.reason = "the prepared input is no row of a batch"
            elif not _agree(pipeline, run, [mixed[0], mixed[0]]):
                self.reason = "the outputs of two inputs in one run differ from their single runs"
            pipeline.shares = self.reason is None
        self._is_decided = True

    def _limit_tokens(self, pipeline: RunnablePipeline, run: Run, find_positions: FindPositions) -> None:
        """Bound the tokens of a text by the positions that the model has."""
        [item, *_] = _items(pipeline, self._examples[0])
        if item.num_tokens:
            most = find_positions(lambda: run([item]), item.num_tokens)
            if most is not None:
                pipeline.limit_tokens(most)


def _reference(pipeline: RunnablePipeline, run: Run, example: Example) -> Reference:
    """Return the outputs of the items of an example that run one by one, and its prediction."""
    outputs = [run([item])[0] for item in _items(pipeline, example)]
    return outputs, pipeline.finish(outputs, example.parameters)


def _items(pipeline: RunnablePipeline, example: Example) -> list[TaskItem]:
    """Return the items of an example. Its text is cut where the model has fewer tokens for it."""
    text = example.task_input.get("text")
    if text is None:
        return pipeline.prepare(example.task_input, example.parameters)
    words = (pipeline.trial_text or text).split()
    while True:
        given = " ".join(words).replace(MASK, pipeline.mask_token or MASK)
        try:
            return pipeline.prepare({"text": given}, example.parameters)
        except InvalidInput:
            # Its end has the mask.
            words = words[1:]
            if not words:
                raise


def _agree(pipeline: RunnablePipeline, run: Run, examples: list[tuple[Example, Reference]]) -> bool:
    """Whether examples have the same outputs and predictions in one run as alone."""
    items = [_items(pipeline, example) for example, _ in examples]
    shapes = {item.shape for each in items for item in each}
    if None in shapes or len(shapes) > 1:
        return False
    try:
        outputs = iter(run([item for each in items for item in each]))
        for (example, (alone, prediction)), each in zip(examples, items, strict=True):
            own = [next(outputs) for _ in each]
            if not _is_close(own, alone) or not _is_close(pipeline.finish(own, example.parameters), prediction):
                return False
    except (RoundhouseError, *RUN_ERRORS):
        return False
    return True


def _is_close(got: Any, single: Any) -> bool:
    if isinstance(single, torch.Tensor):
        return isinstance(got, torch.Tensor) and _are_tensors_close(got, single)
    if isinstance(got, tuple) and hasattr(single, "to_tuple"):
        # A pipeline makes a tuple of an output within another one, when it takes a batch apart.
        single = single.to_tuple()
    if isinstance(single, Mapping) or hasattr(single, "items"):
        return all(name in got and _is_close(got[name], value) for name, value in single.items())
    if isinstance(single, list | tuple):
        return len(got) == len(single) and all(_is_close(*pair) for pair in zip(got, single, strict=True))
    if isinstance(single, np.ndarray):
        return isinstance(got, np.ndarray) and got.shape == single.shape and np.allclose(got, single, 1e-3, 1e-4)
    if isinstance(single, float):
        return isinstance(got, float) and abs(got - single) <= _SCORES
    return True


def _are_tensors_close(got: torch.Tensor, single: torch.Tensor) -> bool:
    """Compare a row with its single run; padding at the end of an axis is cut off."""
    if got.ndim != single.ndim or any(size < own for size, own in zip(got.shape, single.shape, strict=True)):
        return False
    got = got[tuple(slice(0, size) for size in single.shape)]
    if not single.is_floating_point():
        return bool(torch.equal(got, single))
    finite = single[single.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    tolerance = _TOLERANCES.get(single.dtype, 1e-4)
    return bool(torch.allclose(got.float(), single.float(), rtol=0, atol=tolerance * largest + 1e-6, equal_nan=True))
