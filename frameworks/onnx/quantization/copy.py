"""From a graph's file to that of its int8 copy: found in the cache, or made, compared and kept there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import onnxruntime as ort

from frameworks.errors import InvalidModel, RoundhouseError
from frameworks.onnx.graph_outline import GraphOutline
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.quantization.cpu import needs_reduced_range
from frameworks.onnx.quantization.inputs import comparison_batches
from frameworks.onnx.session import OnnxModel, open_session
from frameworks.onnx.text_model import OnnxTextModel, with_text
from frameworks.quantization.comparison import check_cosine, compare
from frameworks.quantization.copies import QuantizedCopies
from frameworks.settings import OnnxModelEntry
from frameworks.types import QuantizationReport

Scheme = Literal["int8", "mixed"]
Model = OnnxModel | OnnxTextModel
Made = TypeVar("Made")

# Dynamic quantisation is for the CPU: other providers have no kernels for it.
_CPU = ProviderChoice([("CPUExecutionProvider", {})], None)


@dataclass(frozen=True, slots=True)
class Original:
    """The model that is quantised; `bytes_before`: its weights on disk, external data included."""

    file: Path
    outline: GraphOutline
    entry: OnnxModelEntry
    bytes_before: int
    intra_op_threads: int

    def open(self, file: Path) -> Model:
        """The model as this entry serves it, its graph read from `file`, its tokenizer from the model's own folder."""
        session = open_session(file, _CPU, self.intra_op_threads, 1)
        model = with_text([OnnxModel(session, self.file, _CPU, 0, self.entry)], self.file.parent)[0]
        assert isinstance(model, OnnxModel | OnnxTextModel)
        return model


def quantized_graph(original: Original, copies: QuantizedCopies) -> tuple[Path, QuantizationReport]:
    """The graph to open instead of the original's, and how good it is.

    Raises InvalidModel where the graph cannot be quantised, where `cache_dir` cannot be written, and where the copy is
    further from the original than the entry's `min_cosine` allows.
    """
    scheme: Scheme = "mixed" if original.entry.quantized == "mixed" else "int8"
    reduced = needs_reduced_range()
    made_by = f"onnxruntime {ort.__version__}, reduced range {reduced}"
    sources = [original.file, *sorted(original.outline.external_files)]
    folder, report = copies.get(
        sources, scheme, made_by, lambda making: _make(original, scheme, reduced, making / "model.onnx")
    )
    remedies = "quantized = false serves the original"
    if scheme == "int8":
        remedies = f'quantized = "mixed" leaves what is sensitive in fp32, {remedies}'
    check_cosine(report, original.entry.min_cosine, original.file, remedies)
    return folder / "model.onnx", report


def _make(original: Original, scheme: Scheme, reduced: bool, target: Path) -> QuantizationReport:
    """Writes the copy to `target`, and the external data of a large one beside it."""
    model = original.open(original.file)
    batches = comparison_batches(model, original.file)
    # Not at the top: 0.15 s, and a start that finds its copies needs none of it.
    from frameworks.onnx.quantization.graph import QuantizableGraph
    from frameworks.onnx.quantization.mixed import AIM_COSINE, choose_unquantized

    graph = _or_invalid(original.file, lambda: QuantizableGraph(original.file, reduced))
    if not graph.matmuls:
        raise InvalidModel(
            f"{original.file}: has no MatMul or Gemm with constant float32 weights, so there is nothing to quantise; "
            "leave quantized out"
        )
    aim = AIM_COSINE if scheme == "mixed" else None
    left = _or_invalid(
        original.file, lambda: choose_unquantized(graph, model, original.open, batches, target.parent, aim)
    )
    _or_invalid(original.file, lambda: graph.write(target, left))
    found = compare(model.infer, original.open(target).infer, batches)
    return QuantizationReport(
        scheme=scheme,
        cosine_min=found.cosine_min,
        cosine_mean=found.cosine_mean,
        speedup=found.speedup,
        bytes_before=original.bytes_before,
        bytes_after=sum(file.stat().st_size for file in target.parent.iterdir()),
    )


def _or_invalid(file: Path, make: Callable[[], Made]) -> Made:
    """onnx and onnxruntime raise many kinds on graphs they cannot quantise; a full disk stays what it is."""
    try:
        return make()
    except (RoundhouseError, OSError):
        raise
    except Exception as error:
        reason = str(error).replace("\n", " ").strip() or type(error).__name__
        raise InvalidModel(f"{file}: onnxruntime cannot quantise it: {reason[:500]}; leave quantized out") from error
