"""Settle how a graph runs on CUDA before its session is opened: provider options, TensorRT engines, captured graphs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.onnx.cuda.declared_inputs import DeclaredInputs, read_declared_inputs
from frameworks.onnx.cuda.engines import engine_folder
from frameworks.onnx.cuda.options import CUDA, TENSORRT, SessionNeeds, with_options
from frameworks.onnx.providers import GraphDevice, ProviderChoice


@dataclass(frozen=True, slots=True)
class CudaLoad:
    """A load of a graph. `sources`: the graph that is opened, then its external data. `weight_bytes`: of one session.
    `max_rows`: of a batch. `is_alone`: no other model runs in this process.
    """

    entry: OnnxModelEntry
    sources: Sequence[Path]
    weight_bytes: int
    max_rows: int
    cache_dir: Path
    is_alone: bool


def settle_cuda(choice: ProviderChoice, load: CudaLoad) -> ProviderChoice:
    """Return the choice with its options, and with the device where graphs are captured if the entry requests them.

    Raises InvalidModel, for `cuda_graph`, where no graph can be captured.
    """
    first, cuda = choice.session_providers[0][0], choice.cuda
    captures = load.entry.cuda_graph
    if captures:
        _check_captures(load, first)
    assert cuda is not None
    # Each instance has a session of its own, and each session an arena.
    max_bytes = None if cuda.grant_bytes is None else cuda.grant_bytes // load.entry.instances
    has_tensorrt = any(name == TENSORRT for name, _ in choice.session_providers)
    needs = SessionNeeds(
        max_bytes,
        load.weight_bytes,
        load.max_rows,
        captures,
        engine_folder(load.cache_dir, load.sources, cuda.name) if has_tensorrt else None,
        read_declared_inputs(load.sources[0]) if has_tensorrt else DeclaredInputs(),
    )
    graph_device = GraphDevice("cuda", cuda.index, load.max_rows) if captures else None
    return replace(with_options(choice, needs), captures=graph_device)


def _check_captures(load: CudaLoad, first: str) -> None:
    path = load.sources[0]
    if first != CUDA:
        raise InvalidModel(
            f"{path}: cuda_graph: expected CUDA as the model's first provider, got {first}; set execution_providers = "
            '["CUDA"] for a model on a CUDA device, or remove cuda_graph'
        )
    if not load.is_alone:
        # ONNX Runtime captures in CUDA's global mode: meanwhile the calls of other models would fail.
        raise InvalidModel(
            f"{path}: cuda_graph: expected a model in a process of its own, got one in a process that may have others; "
            'set isolation = "process", or remove cuda_graph'
        )
