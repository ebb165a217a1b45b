"""A vision model of transformers, with or without a text tower: images and texts in, embeddings or logits out."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.images.processor import ImageProcessor
from frameworks.pytorch.device.pinned import pinned_arrays
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.device_model import DeviceModel
from frameworks.pytorch.encoders.images.graphs import ImageGraphs, Rows
from frameworks.quantization.warm_up_images import black_pixels
from frameworks.scheduling.merging.comparison import text_tolerance
from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS, TextPadding, run_by_length
from frameworks.text.padding import pad
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TEXT_OUTPUT, Array, Batch, ModelSpec, TensorBatch, TokenBatch, Value
from memory.tensor_pool import TensorPool

PIXELS = "pixel_values"
"""The input of every vision model of transformers."""


class TextTower:
    """The text tower of a model. `length`: tokens that each text is padded to; 0 for the longest of a run."""

    def __init__(self, tokenizer: TextTokenizer, pad_token_id: int, length: int, reads_mask: bool) -> None:
        """`reads_mask`: whether padding is masked. SigLIP was trained without a mask."""
        self.tokenizer = tokenizer
        self.padding = TextPadding(pad_token_id)
        self._length = length
        self._reads_mask = reads_mask

    @property
    def pads_to_longest(self) -> bool:
        """Whether the padding of a text depends on the other texts of its batch."""
        return not self._length

    def inputs(self, batch: TokenBatch, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the inputs of the model by name, int64 [texts, tokens] each."""
        tokens = pad(batch.token_ids, self.padding.pad_token_id or 0, self._length)
        inputs = {"input_ids": torch.from_numpy(tokens.input_ids).to(device)}
        if self._reads_mask:
            inputs["attention_mask"] = torch.from_numpy(tokens.attention_mask).to(device)
        return inputs


class ImageModel(DeviceModel):
    """One thread at a time calls `infer`. Takes the pixels of images as TensorBatch, and texts as TokenBatch."""

    graphs: ImageGraphs | None = None
    """Of all instances; None on other devices than CUDA."""

    def __init__(
        self,
        model: torch.nn.Module,
        spec: ModelSpec,
        processor: ImageProcessor,
        rows: Rows,
        intra_op_threads: int,
        texts: TextTower | None = None,
        pool: TensorPool | None = None,
    ) -> None:
        """`rows`: one row for each image from pixels. `pool`: of the pinned memory through which pixels reach a GPU."""
        super().__init__(model, torch.device(spec.device), intra_op_threads, pool)
        self._rows: Rows | None = rows
        self._texts = texts
        self.image_processor: ImageProcessor | None = processor
        self.tokenizer: TextTokenizer | None = None if texts is None else texts.tokenizer
        self.spec = spec

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer; returns float32 [images, size or labels] under the name of the only output, and
        float32 [texts, size] under TEXT_OUTPUT.
        """

        def run(model: torch.nn.Module) -> dict[str, Value]:
            with torch.inference_mode():
                if isinstance(batch, TokenBatch):
                    return {TEXT_OUTPUT: self._embed_texts(model, batch)}
                assert isinstance(batch, TensorBatch)
                return {self._output_of(batch): self._compute(self._pixels_of(batch))}

        kind = "texts" if isinstance(batch, TokenBatch) else "images"
        return self._run_on_device(run, lambda: f"a batch of {batch.rows} {kind}")

    def warm_up(self) -> None:
        """Run two black images, and two texts. Raises InvalidModel."""
        assert self.image_processor is not None
        try:
            pixels = black_pixels(self.image_processor, 2)
            if self.graphs is not None:
                self._capture(self.graphs, pixels.shape[1:])
            output = self.infer(TensorBatch({PIXELS: pixels}))[self.spec.outputs[0].name]
            if self.tokenizer is not None:
                self.infer(TokenBatch(self.tokenizer.tokenize(["", "warm up"], truncate=True)))
                self._try_padding(self.tokenizer)
        except RUN_ERRORS as error:
            raise InvalidModel(f"the model does not run on images: {error}") from error
        assert isinstance(output, np.ndarray)
        expected = self.spec.outputs[0].shape
        if expected is not None and output.shape[1:] != expected[1:]:
            raise InvalidModel(f"the model has outputs of {output.shape[1:]}, expected {expected[1:]} by its config")

    def _capture(self, graphs: ImageGraphs, shape: tuple[int, ...]) -> None:
        def run(_: torch.nn.Module) -> dict[str, Value]:
            assert self._rows is not None
            graphs.capture(self._rows, shape)
            return {}

        self._run_on_device(run, lambda: "a batch of images")
        self.spec = replace(self.spec, graphs=str(graphs), memory_bytes=self.spec.memory_bytes + graphs.size_bytes)

    def _try_padding(self, tokenizer: TextTokenizer) -> None:
        if self._texts is None or not self._texts.pads_to_longest or self.spec.text is None:
            return

        def run(batch: TokenBatch) -> Array:
            rows = self._run_on_device(
                lambda model: {TEXT_OUTPUT: self._run_texts(model, batch)}, lambda: f"a batch of {batch.rows} texts"
            )[TEXT_OUTPUT]
            assert isinstance(rows, np.ndarray)
            return rows

        token_ids = tokenizer.tokenize([*TRIAL_TEXTS], truncate=True)
        because = self._texts.padding.reason_not_shared(token_ids, run, text_tolerance(self.spec))
        self.spec = replace(self.spec, text=replace(self.spec.text, unpadded_because=because))

    def close(self) -> None:
        # They hold the module too.
        self._rows = self.graphs = None
        super().close()

    def _output_of(self, batch: TensorBatch) -> str:
        name = self.spec.outputs[0].name
        if batch.output_names not in (None, (name,)):
            raise InvalidInput("outputs", f'expected "{name}", the only output, got others; name it or none')
        return name

    def _pixels_of(self, batch: TensorBatch) -> Array:
        """Return the pixels, float32 [images, 3, height, width]. Raises InvalidInput."""
        pixels = batch.inputs.get(PIXELS)
        assert self.image_processor is not None
        shape = self.image_processor.empty(0).shape
        if len(batch.inputs) != 1 or not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32:
            raise InvalidInput("inputs", f'expected "{PIXELS}" in float32 alone, got others; send it, or send images')
        if pixels.shape[1:] != shape[1:]:
            raise InvalidInput(
                f"inputs.{PIXELS}", f"expected the shape {[-1, *shape[1:]]}, got {list(pixels.shape)}; correct it"
            )
        return pixels

    def _compute(self, pixels: Array) -> Array:
        assert self._rows is not None
        if self.graphs is not None and self.graphs.computes(len(pixels)):
            found: Array = self.graphs.rows(pixels).float().cpu().numpy()
            return found
        # The copies from pinned memory are complete when the result arrives.
        with pinned_arrays(self._pool) as empty:
            if self._pool is not None:
                pinned = empty(pixels.shape, pixels.dtype)
                np.copyto(pinned, pixels)
                pixels = pinned
            tensor = torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy())
            tensor = tensor.to(self._device, non_blocking=self._pool is not None)
            rows: Array = self._rows(tensor).float().cpu().numpy()
        return rows

    def _embed_texts(self, model: Any, batch: TokenBatch) -> Array:
        if self._texts is None:
            raise InvalidInput("text", "expected images for this model, got text; send the field image")
        if self.spec.text is not None and self.spec.text.unpadded_because is not None:
            return run_by_length(batch, partial(self._run_texts, model))
        return self._run_texts(model, batch)

    def _run_texts(self, model: Any, batch: TokenBatch) -> Array:
        assert self._texts is not None
        with torch.inference_mode():
            output = model.get_text_features(**self._texts.inputs(batch, self._device))
        rows: Array = pooled(output).float().cpu().numpy()
        return rows


def pooled(output: Any) -> torch.Tensor:
    """Return the embeddings of an output: of its pooler, [rows, size]. Poolings of convolutions have two more axes."""
    rows: torch.Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
    return rows.flatten(1)
