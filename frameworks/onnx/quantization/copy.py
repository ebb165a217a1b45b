"""Find the int8 copy of a graph in the cache, or make, compare and keep it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.core.errors import InvalidModel, RoundhouseError
from frameworks.core.progress import phase
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.quantization.original import Original
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.quantization.comparison import check_cosine, compare
from frameworks.quantization.copies import QuantizedCopies
from frameworks.quantization.ranges import cpu_capability
from frameworks.quantization.texts import text_batches
from frameworks.scheduling.merging.comparison import random_row
from frameworks.types import Batch, QuantizationReport, TensorBatch, TensorType, Value

log = structlog.get_logger(__name__)

Scheme = Literal["int8", "mixed"]
Made = TypeVar("Made")

_RANDOM_BATCHES = 16


def quantized_graph(original: Original, copies: QuantizedCopies) -> tuple[Path, QuantizationReport]:
    """Return the graph to open instead of the original, and its report.

    Raises InvalidModel if the graph cannot be quantized, if `cache_dir` is not writable, and if the copy is further
    from the original than the entry's `min_cosine` allows.
    """
    scheme: Scheme = "mixed" if original.entry.quantized == "mixed" else "int8"
    # The CPU decides how far weights may be rounded, and with it the copy; its figures are those of this CPU too.
    made_by = f"onnxruntime {ort.__version__}, {cpu_capability()}"
    sources = [original.file, *sorted(original.summary.external_files)]
    folder, report = copies.get(sources, scheme, made_by, lambda making: _make(original, scheme, making / "model.onnx"))
    remedies = "quantized = false serves the original"
    if scheme == "int8":
        remedies = f'quantized = "mixed" leaves what is sensitive in fp32, {remedies}'
    check_cosine(report, original.entry.min_cosine, original.file, remedies)
    return folder / "model.onnx", report


def _make(original: Original, scheme: Scheme, target: Path) -> QuantizationReport:
    """Write the copy to `target`, and the external data of a large one beside it."""
    model = original.open(original.file)
    if isinstance(model, OnnxTextModel) and model.is_sparse:
        raise InvalidModel(
            f"{original.file}: quantized: expected false for a model of sparse vectors, got {scheme}; remove quantized"
        )
    batches = comparison_batches(model, original.file)
    # Imported here, as it takes 0.15 s: a start that finds its copies needs none of it.
    from frameworks.onnx.quantization.graph import QuantizableGraph
    from frameworks.onnx.quantization.mixed import TARGET_COSINE, choose_unquantized
    from frameworks.onnx.quantization.saturation import exact_range

    weight_range = exact_range()
    graph = _as_invalid_model(original.file, lambda: QuantizableGraph(original.file, weight_range))
    if not graph.matmuls:
        raise InvalidModel(
            f"{original.file}: quantized: expected a MatMul or Gemm with constant float32 weights, got none; "
            "remove quantized"
        )
    target_cosine = TARGET_COSINE if scheme == "mixed" else None
    left = _as_invalid_model(
        original.file, lambda: choose_unquantized(graph, model, original.open, batches, target.parent, target_cosine)
    )
    phase("writing the copy")
    _as_invalid_model(original.file, lambda: graph.write(target, left))
    phase("comparing with the original")
    found = compare(model.infer, original.open(target).infer, batches)
    bytes_after = sum(file.stat().st_size for file in target.parent.iterdir())
    report = found.report(scheme, original.bytes_before, bytes_after)
    log.info(
        "int8 copy made",
        model=original.entry.name,
        weights=weight_range.name,
        speedup=report.speedup,
        original_ms=report.original_ms,
        quantized_ms=report.quantized_ms,
        cosine_min=report.cosine_min,
    )
    return replace(report, kernel="onnxruntime", weights=weight_range.name)


def _as_invalid_model(file: Path, make: Callable[[], Made]) -> Made:
    """Run `make` and map its errors to InvalidModel: onnx and onnxruntime raise many types. A full disk stays an
    OSError.
    """
    try:
        return make()
    except (RoundhouseError, OSError):
        raise
    except Exception as error:
        reason = str(error).replace("\n", " ").strip() or type(error).__name__
        raise InvalidModel(f"{file}: onnxruntime cannot quantize it: {reason[:500]}; remove quantized") from error


def comparison_batches(model: OnnxModel | OnnxTextModel, file: Path) -> list[Batch]:
    """Return the warm-up texts in batches of similar length, as a server runs them; for tensors, random values from a
    fixed seed.

    Raises InvalidModel if the graph does not run on them.
    """
    batches: list[Batch] = []
    if isinstance(model, OnnxTextModel):
        assert model.tokenizer is not None
        batches += text_batches(model.tokenizer.tokenize)
    else:
        random = np.random.default_rng(0)
        batches += [TensorBatch(_random_inputs(model, file, random)) for _ in range(_RANDOM_BATCHES)]
    try:
        model.infer(batches[0])
    except RoundhouseError as error:
        raise InvalidModel(
            f"{file}: the graph cannot be compared with its quantized copy: {error.message}; "
            "set input_shape, or remove quantized"
        ) from error
    return batches


def _random_inputs(model: OnnxModel, file: Path, random: np.random.Generator) -> dict[str, Value]:
    inputs: dict[str, Value] = {}
    for name, zeros in model.example_inputs().items():
        declared = model.spec.inputs_by_name[name]
        if not isinstance(zeros, np.ndarray) or not isinstance(declared.type, TensorType):
            raise InvalidModel(
                f'{file}: "{name}": expected a tensor to compare a quantized copy on, got a {declared.type}; '
                "remove quantized"
            )
        # The first axis of a row is its own: one more makes all of the shape random.
        whole = replace(declared, type=TensorType(declared.type.dtype, None))
        inputs[name] = random_row(whole, (1, *zeros.shape), random)[0]
    return inputs
