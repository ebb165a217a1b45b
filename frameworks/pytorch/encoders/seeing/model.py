"""A model that embeds texts and images alike: prepared contents in, a vector for each, or for each of their tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import structlog
import torch
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import MessageImage
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.device_model import DeviceModel
from frameworks.pytorch.encoders.seeing.conversations import ConversationPrompts
from frameworks.pytorch.encoders.seeing.pages import PagePrompts
from frameworks.scheduling.merging.comparison import Tolerance, is_close, text_tolerance
from frameworks.tasks.types import TaskItem
from frameworks.types import TASK_OUTPUT, Array, Batch, ModelSpec, TaskBatch, Value

log = structlog.get_logger(__name__)

Rows = Callable[[torch.nn.Module, Mapping[str, Any]], Array]
"""From the module and the inputs of its pass to float32 rows: [items, size], or [items, tokens, size]."""
_TRIAL_TEXTS = ("warm up with one", "warm up with two")
_TRIAL_SIDES = (48, 32)


class JoinTrial:
    """One trial for all instances of a model: whether an item gets the same row beside another one as alone."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._is_tried = False

    def decide(
        self, pairs: Sequence[Sequence[TaskItem]], run: Callable[[list[TaskItem]], list[Array]], off: Tolerance
    ) -> None:
        """Compare the items of each pair together and alone. `off`: how far two rows of one item may be off."""
        for pair in pairs if not self._is_tried else ():
            if len({item.shape for item in pair}) > 1 or pair[0].shape is None:
                continue
            for item, row in zip(pair, run(list(pair)), strict=True):
                if not is_close(row, run([item])[0], off):
                    self.reason = "the row of an item that shares a run differs from its single run"
        self._is_tried = True


class SeeingModel(DeviceModel):
    """One thread at a time calls `infer`. Takes the items of its prompts. No item is padded."""

    image_processor = None

    def __init__(
        self,
        model: torch.nn.Module,
        spec: ModelSpec,
        prompts: PagePrompts | ConversationPrompts,
        rows: Rows,
        trial: JoinTrial,
        intra_op_threads: int,
    ) -> None:
        """`trial`: of all instances. `intra_op_threads`: CPU threads of one run."""
        super().__init__(model, torch.device(spec.device), intra_op_threads, None)
        self.content_prompts = prompts
        self.tokenizer = prompts.tokenizer
        self._rows = rows
        self._trial = trial
        self._dtype = next(model.parameters()).dtype
        self.spec = spec

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer; takes a TaskBatch, returns an object array [items] of float32 under TASK_OUTPUT."""
        if not isinstance(batch, TaskBatch):
            raise InvalidInput("inputs", "expected texts or images for this model, got tensors; send text or image")
        joined = [batch.items] if self._trial.reason is None else [[item] for item in batch.items]
        found = np.empty(batch.rows, object)

        def run(model: torch.nn.Module) -> dict[str, Value]:
            row = 0
            for items in joined:
                for each in self._computed(model, items):
                    # Not a view: it would keep the rows of the batch in memory.
                    found[row] = each.copy()
                    row += 1
            return {TASK_OUTPUT: found}

        return self._run_on_device(run, lambda: f"a batch of {batch.rows} texts or images")

    def warm_up(self) -> None:
        """Run texts and images, alone and together, to find out whether they share a run. Raises InvalidModel."""
        prompts = self.content_prompts
        try:
            texts = [prompts.of_text(text, "text", True, None) for text in _TRIAL_TEXTS]
            images = [prompts.of_image(_random_image(number)) for number in range(2)]
            self._trial.decide((texts, images), self._run_items, text_tolerance(self.spec))
            rows = self._run_items(images[:1])
        except (*RUN_ERRORS, InvalidInput) as error:
            raise InvalidModel(f"the model does not run on texts and images: {error}") from error
        expected = self.spec.embedding_size
        if rows[0].shape[-1] != expected:
            raise InvalidModel(
                f"the model has vectors of {rows[0].shape[-1]} numbers, expected {expected} by its files"
            )
        self.spec = replace(self.spec, unbatched_because=self._trial.reason)
        if self._trial.reason is not None:
            log.warning("texts and images are not batched together", reason=self._trial.reason)

    def _run_items(self, items: list[TaskItem]) -> list[Array]:
        """Run items together, whatever earlier trials found."""
        found: list[Array] = []

        def run(model: torch.nn.Module) -> dict[str, Value]:
            found.extend(self._computed(model, items))
            return {}

        self._run_on_device(run, lambda: "a batch of texts or images")
        return found

    def _computed(self, model: torch.nn.Module, items: Sequence[TaskItem]) -> Array:
        first: Mapping[str, Any] = items[0].value
        inputs = {
            name: self._on_device([item.value[name] for item in items]) if isinstance(value, torch.Tensor) else value
            for name, value in first.items()
        }
        with torch.inference_mode():
            return self._rows(model, inputs)

    def _on_device(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the rows of several tensors in one, floating ones in the dtype of the model."""
        joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return joined.to(self._device, self._dtype if joined.is_floating_point() else None)


def _random_image(number: int) -> MessageImage:
    pixels = np.random.default_rng(number).integers(0, 256, (*_TRIAL_SIDES, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return MessageImage(file.getvalue(), 0, "image")
