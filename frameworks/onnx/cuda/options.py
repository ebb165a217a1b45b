"""Choose the options of ONNX Runtime's CUDA and TensorRT providers for one session of a graph. Pure.

Source: the parsers of the options in core/providers and in the Python binding of ONNX Runtime.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from frameworks.onnx.cuda.declared_inputs import DeclaredInputs
from frameworks.onnx.providers import Options, ProviderChoice, SessionProviders

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
_PROFILE_KEYS = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_MIN_WORKSPACE_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class SessionNeeds:
    """The figures that decide the options of a session.

    `max_bytes`: of the session on the device; None: no bound is known. `weight_bytes`: of the graph. `max_rows`: of a
    batch. `engines`: folder of the TensorRT engines; None: they are not kept. `inputs`: as the graph's file has them.
    """

    max_bytes: int | None
    weight_bytes: int
    max_rows: int
    captures_graphs: bool = False
    engines: Path | None = None
    inputs: DeclaredInputs = field(default_factory=DeclaredInputs)


def with_options(choice: ProviderChoice, needs: SessionNeeds) -> ProviderChoice:
    """Add the options to the CUDA and TensorRT providers of a choice, and what to try where they do not start.

    The next attempt of a TensorRT session has no shape profile: a graph that TensorRT runs in parts needs profiles of
    values within the graph too. Captured graphs have no second attempt: another provider has no such graphs.
    """
    full = [(name, options | _added(name, needs)) for name, options in choice.session_providers]
    attempts: list[SessionProviders] = []
    if not needs.captures_graphs:
        if any(_has_profile(options) for _, options in full):
            attempts.append([(name, _without_profile(options)) for name, options in full])
        attempts += [full[start:] for start in range(1, len(full))]
    return replace(choice, session_providers=full, fallbacks=tuple(attempts))


def _added(name: str, needs: SessionNeeds) -> Options:
    if name == CUDA:
        return cuda_options(needs)
    return tensorrt_options(needs) if name == TENSORRT else {}


def cuda_options(needs: SessionNeeds) -> Options:
    """Return the options of the CUDA provider, without the device."""
    options = {
        # The default doubles the arena. A batch that is a little larger would take twice the memory, for good.
        "arena_extend_strategy": "kSameAsRequested",
        # The default, EXHAUSTIVE, runs every algorithm of cuDNN for each new shape: a batch of a new size would wait
        # for seconds. A model with captured graphs meets all its shapes at warm-up.
        "cudnn_conv_algo_search": "EXHAUSTIVE" if needs.captures_graphs else "HEURISTIC",
        # Copies on other streams race with the arena (ONNX Runtime's issue 4829). It is the default, held here.
        "do_copy_in_default_stream": "1",
    }
    if needs.max_bytes is not None:
        # The default is the whole card. Beyond the limit a batch fails, and is split in half.
        options["gpu_mem_limit"] = str(needs.max_bytes)
    if needs.captures_graphs:
        options["enable_cuda_graph"] = "1"
    return options


def tensorrt_options(needs: SessionNeeds) -> Options:
    """Return the options of the TensorRT provider, without the device. Its parser takes `True`, and no `1`."""
    # Rounding an f32 graph to f16 is a decision of its author; an f16 graph without it would be computed in f32.
    options = {"trt_fp16_enable": str(needs.inputs.is_half)}
    if needs.max_bytes is not None:
        # Scratch memory of an engine: what the weights leave. The default is the whole card.
        options["trt_max_workspace_size"] = str(max(_MIN_WORKSPACE_BYTES, needs.max_bytes - needs.weight_bytes))
    if needs.engines is not None:
        # An engine is built in minutes and read in seconds. Measured times of layers shorten a build too.
        options |= {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(needs.engines),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(needs.engines),
        }
    # Without a profile the first batch of more rows than before builds the engine again, while requests wait.
    return options | rows_profile(needs.inputs, needs.max_rows)


def rows_profile(inputs: DeclaredInputs, max_rows: int) -> Options:
    """Return the shapes for which an engine is built: 1 to `max_rows` rows, fastest at `max_rows`.

    Empty where no input has free rows, or another dimension is free: its largest size is not known.
    """
    free = {name: shape for name, shape in inputs.shapes.items() if shape is None or None in shape}
    fixed: dict[str, tuple[int, ...]] = {}
    for name, shape in free.items():
        sizes = tuple(size for size in (shape or ())[1:] if size is not None)
        if not shape or shape[0] is not None or len(sizes) < len(shape) - 1 or "," in name or ":" in name:
            return {}
        fixed[name] = sizes
    if not fixed:
        return {}
    return {key: _shapes(fixed, rows) for key, rows in zip(_PROFILE_KEYS, (1, max_rows, max_rows), strict=True)}


def _shapes(inputs: Mapping[str, tuple[int, ...]], rows: int) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, (rows, *sizes)))}" for name, sizes in inputs.items())


def _has_profile(options: Options) -> bool:
    return _PROFILE_KEYS[0] in options


def _without_profile(options: Options) -> Options:
    return {key: value for key, value in options.items() if key not in _PROFILE_KEYS}
