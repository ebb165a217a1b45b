"""Choose between ONNX Runtime and the compiled layers of PyTorch for the graph of an encoder."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import structlog

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel, OutOfMemory, RoundhouseError
from frameworks.core.files import read_json
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.onnx.encoders.copy import encoder_folder, not_compiled
from frameworks.onnx.quantization.original import Original
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.quantization.comparison import DEFAULT_MIN_COSINE, compare, row_cosines
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.texts import WARM_UP_TEXTS, text_batches
from frameworks.runtime import BatchModel, Registry
from frameworks.types import TEXT_OUTPUT, Array, Batch, KernelTrial, ProductTrial

log = structlog.get_logger(__name__)

_TOLERANCE = 1e-3
"""Largest difference between the rows of both, relative to the largest number of the rows."""
_CPU = "CPUExecutionProvider"
_GRAPH, _COMPILED = "onnxruntime", "compiled"
_PAIRED = 9
"""Number of the first warm-up texts of which neighbours are a pair."""
_LEAST_NORM = 1e-12


@dataclass(frozen=True, slots=True)
class EncoderLayers:
    """The choice for one model. `torch`: makes the registry of PyTorch, which it imports."""

    original: Original
    copies: QuantizedCopies
    torch: Callable[[], Registry]

    def host_bytes(self) -> int:
        """Return the memory that compiled layers need beside the session; 0 where "auto" finds no encoder.

        The copy is made here, before memory is reserved. Raises InvalidModel where "compiled" is not possible.
        """
        try:
            folder = encoder_folder(self.original, self.copies)
            return self.torch().needs(self._entry(folder), folder).host_bytes
        except InvalidModel:
            if self.original.entry.kernels == _COMPILED:
                raise
            return 0

    def choose(self, models: list[BatchModel], device: Device) -> list[BatchModel]:
        """Return the instances that serve, with their kernels; close the others. `models`: of ONNX Runtime.

        Raises InvalidModel where "compiled" is wanted, and not possible or not equal; OutOfMemory.
        """
        try:
            compiled, chosen = self._compiled(models, device)
        except InvalidModel as error:
            if self.original.entry.kernels == _COMPILED:
                raise
            log.warning("the graph keeps ONNX Runtime", model=self.original.entry.name, reason=error.message)
            return models
        served, others = (compiled, models) if chosen.kernel == _COMPILED else (models, compiled)
        log.info("kernels of a graph are chosen", model=self.original.entry.name, kernel=chosen.kernel)
        for each in others:
            each.close()
        for each in served:
            each.spec = replace(each.spec, products=(chosen,))
        return served

    def _compiled(self, models: Sequence[BatchModel], device: Device) -> tuple[list[BatchModel], ProductTrial]:
        """Return instances with compiled layers that give the rows of the graph, and the faster of both."""
        graph, entry = models[0], self.original.entry
        if not isinstance(graph, OnnxTextModel) or graph.is_sparse:
            raise not_compiled(self.original, "it gives neither dense vectors of texts nor labels")
        provider = graph.spec.providers[0]
        if device.kind != "cpu" or provider != _CPU:
            raise not_compiled(self.original, f"it runs by {provider} on {device.id}")
        folder = encoder_folder(self.original, self.copies)
        try:
            compiled = cast(list[BatchModel], self.torch().load(self._entry(folder), folder, device))
            compiled[0].warm_up()
            batches = _batches(graph)
            expected, found = (
                np.concatenate([_rows(each, batch) for batch in batches]) for each in (graph, compiled[0])
            )
        except OutOfMemory:
            raise
        except RoundhouseError as error:
            raise not_compiled(self.original, error.message) from error
        self._check(expected, found, compiled[0])
        chosen = _described(read_json(folder / "config.json"))
        if entry.kernels == _COMPILED:
            return compiled, chosen
        times = compare(graph.infer, compiled[0].infer, batches)
        trials = tuple(
            KernelTrial(name, "", _error(expected, rows), {str(len(rows)): round(1e3 * seconds, 3)})
            for name, rows, seconds in ((_GRAPH, expected, times.original_s), (_COMPILED, found, times.quantized_s))
        )
        is_faster = times.quantized_s < times.original_s
        return compiled, replace(chosen, kernel=_COMPILED if is_faster else _GRAPH, trials=trials)

    def _entry(self, folder: Path) -> TorchModelEntry:
        """Return the entry by which PyTorch serves the copy of the encoder."""
        entry = self.original.entry
        return TorchModelEntry(
            name=entry.name,
            path=folder,
            task=entry.task,
            device="cpu",
            dtype="int8" if entry.quantized else "f32",
            kernels="auto" if entry.quantized else "compiled",
            instances=entry.instances,
            max_batch_size=entry.max_batch_size,
            max_batch_tokens=entry.max_batch_tokens,
            min_cosine=entry.min_cosine,
            allow_pickled_weights=entry.allow_pickled_weights,
        )

    def _check(self, expected: Array, found: Array, compiled: BatchModel) -> None:
        """Compare the rows of warm-up texts. Raises InvalidModel."""
        if expected.shape != found.shape:
            shapes = f"rows of shape {[*found.shape]} instead of {[*expected.shape]}"
            raise not_compiled(self.original, f"its config.json and its modules give {shapes}")
        quantization = compiled.spec.quantization
        if quantization is None:
            error = _error(expected, found)
            if not error <= _TOLERANCE:
                reason = f"compiled layers differ by {error:.2g} of the largest number on warm-up texts"
                raise not_compiled(self.original, f"{reason}, more than {_TOLERANCE:g}")
            return
        if quantization.kernel != _COMPILED:
            raise not_compiled(self.original, f"int8 layers by {quantization.kernel} are faster on this CPU")
        least = DEFAULT_MIN_COSINE if self.original.entry.min_cosine is None else self.original.entry.min_cosine
        cosine = float(row_cosines(expected, found).min())
        if not cosine >= least:
            reason = f"compiled int8 layers have a cosine of {cosine:.4f} to it at worst, below min_cosine {least:g}"
            raise not_compiled(self.original, reason)


def _described(config: dict[str, Any]) -> ProductTrial:
    """Return the compiled layers of an encoder, by transformers' and by DistilBERT's names of sizes."""
    size = int(config.get("hidden_size", config.get("dim", 0)))
    return ProductTrial(size, size, int(config.get("num_hidden_layers", config.get("n_layers", 0))), _COMPILED)


def _batches(graph: OnnxTextModel) -> list[Batch]:
    """Return the warm-up texts, and pairs of them where the graph reads the types of tokens."""
    tokenizer = graph.tokenizer
    assert tokenizer is not None
    batches = text_batches(tokenizer.tokenize)
    if "token_type_ids" in graph.spec.inputs_by_name:
        batches.append(tokenizer.tokenize_pairs([*itertools.pairwise(WARM_UP_TEXTS[:_PAIRED])], truncate=True))
    return batches


def _rows(model: BatchModel, batch: Batch) -> Array:
    """Return a row for each text, normalised where requests get them so: some graphs do it themselves."""
    rows = model.infer(batch)[TEXT_OUTPUT]
    assert isinstance(rows, np.ndarray)
    if model.spec.task == "embed" and model.spec.text is not None and model.spec.text.normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _LEAST_NORM)
    return rows


def _error(expected: Array, found: Array) -> float:
    """Return the largest difference, relative to the largest number; NaN where one is not finite."""
    return float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), _LEAST_NORM))
