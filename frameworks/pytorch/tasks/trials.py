"""Find out by a trial which prepared inputs share a run: of any length, of one length, or none."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.tasks.examples import EXAMPLES, MASK, Example
from frameworks.pytorch.tasks.pipelines import RunnablePipeline
from frameworks.tasks.types import TaskItem

# Relative to the largest number of an output: a larger batch adds in another order.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

Run = Callable[[list[TaskItem]], list[Any]]
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
        short, long = (_items(pipeline, example) for example in self._examples[:2])
        alone = [run([item])[0] for item in (short[0], long[0])]
        pipeline.finish(run_each(short, run), self._examples[0].parameters)
        pipeline.shares = pipeline.pads = True
        # The longer one first: a model that pads or masks all rows as the first one changes a row.
        mixed = [_items(pipeline, example)[0] for example in (self._examples[1], self._examples[0])]
        if mixed[0].shape is None or mixed[0].shape != mixed[1].shape or not _agree(run, mixed, alone[::-1]):
            pipeline.pads = False
            equal = _items(pipeline, self._examples[1])[0]
            if equal.shape is None:
                self.reason = "the prepared input is no row of a batch"
            elif not _agree(run, [equal, equal], [alone[1], alone[1]]):
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


def run_each(items: list[TaskItem], run: Run) -> list[Any]:
    """Return the outputs of items that run one by one."""
    return [run([item])[0] for item in items]


def _items(pipeline: RunnablePipeline, example: Example) -> list[TaskItem]:
    """Return the items of an example. Its text is cut where the model has fewer tokens for it."""
    text = example.task_input.get("text")
    if text is None:
        return pipeline.prepare(example.task_input, example.parameters)
    words = text.split()
    while True:
        given = " ".join(words).replace(MASK, pipeline.mask_token or MASK)
        try:
            return pipeline.prepare({"text": given}, example.parameters)
        except InvalidInput:
            # Its end has the mask.
            words = words[1:]
            if not words:
                raise


def _agree(run: Run, items: list[TaskItem], alone: list[Any]) -> bool:
    """Whether items have the same outputs in one run as alone."""
    try:
        together = run(items)
    except (RoundhouseError, *RUN_ERRORS):
        return False
    return all(_is_close(got, single) for got, single in zip(together, alone, strict=True))


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
