"""Open ONNX Runtime sessions, run those with bfloat16 values, and read ONNX Runtime's errors."""

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.core.errors import InvalidModel, OutOfMemory, without_paths
from frameworks.onnx.providers import ProviderChoice
from frameworks.types import Array, TensorType, Value, ValueSpec

log = structlog.get_logger(__name__)

_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_LOG_ERRORS_ONLY = 3
# Messages of ONNX Runtime's arenas, of CUDA, of cuBLAS and cuDNN, and of `new`, which differ on Windows.
_OUT_OF_MEMORY_SIGNS = (
    "failed to allocate",
    "smaller than requested bytes",
    "bfcarena",
    "out of memory",
    "status_alloc_failed",
    "bad_alloc",
    "bad allocation",
    "memoryerror",
)
_CUDA_FAILURES = ("cuda failure", "cublas failure", "cudnn failure")
# The refusal of a session with `enable_cuda_graph`.
_CAPTURE_SIGNS = ("graph capture feature", "cuda graph feature")
_DEVICE_SIGNS = ("cuda", "cublas", "cudnn", "tensorrt", "hip", "miopen")


def open_session(
    path: Path,
    choice: ProviderChoice,
    intra_op_threads: int,
    inter_op_threads: int,
    read_locations: frozenset[str] = frozenset(),
) -> ort.InferenceSession:
    """Open a graph with every optimisation on. `read_locations`: external data to read instead of map.

    A graph is opened by path, never from bytes: ONNX Runtime then refuses external data outside the model's own folder,
    symbolic links followed. Custom-op libraries are never registered. Raises InvalidModel, OutOfMemory.
    """
    if not _is_utf8(path):
        raise InvalidModel(f"{path}: expected a path in UTF-8, which onnxruntime needs; rename the file or its folder")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = inter_op_threads
    if inter_op_threads > 1:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.log_severity_level = _LOG_ERRORS_ONLY
    # Models share the cores: a spinning thread takes them from other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The arena stays on. It keeps the activations of the largest batch until the session is closed. Without it a run
    # that needs more than malloc keeps (32 MiB in one piece) faults its pages in again: MiniLM, 32 texts of 128 tokens,
    # is 10 to 30 % slower. kSameAsRequested exists only for the environment's arena, which outlives the sessions. On a
    # CPU SkipLayerNormFusion is slower: its kernel is scalar, Add and LayerNormalization are not. Without it MiniLM is
    # 15 % faster, and 35 % where its MatMuls are int8.
    on_cpu = choice.session_providers[0][0] == "CPUExecutionProvider"
    slow = ["SkipLayerNormFusion"] if on_cpu else None
    try:
        contents = read_external_data(options, path, read_locations)
        session = _open(path, options, choice, slow)
        session.external_data = contents  # the session reads them as long as it lives
        return session
    except Exception as error:
        message = plain_message(error)
        if is_out_of_memory(message):
            what = "the graph does not fit into memory"
            raise OutOfMemory(f"{path}: {what}: {message}", f"{what}: {without_paths(message)}") from error
        if _contains(message, _CAPTURE_SIGNS):
            raise InvalidModel(
                f"{path}: cuda_graph: expected a graph whose nodes all run on CUDA, got others ({message}); remove "
                "cuda_graph"
            ) from error
        raise InvalidModel(f"{path}: onnxruntime cannot load it: {message}") from error


def _open(
    path: Path, options: ort.SessionOptions, choice: ProviderChoice, slow: list[str] | None
) -> ort.InferenceSession:
    """Open a session with the first providers that start. Raises what ONNX Runtime raises for the last ones.

    ONNX Runtime's own fallback would drop the options of CUDA: the session might open on another card. Where memory ran
    out, no other provider is tried: the model was placed on this device.
    """
    if choice.fallbacks is None:
        return ort.InferenceSession(str(path), options, providers=choice.session_providers, disabled_optimizers=slow)
    attempts = [choice.session_providers, *choice.fallbacks]
    for number, providers in enumerate(attempts, 1):
        try:
            return ort.InferenceSession(
                str(path), options, providers=providers, disabled_optimizers=slow, enable_fallback=0
            )
        except Exception as error:
            message = plain_message(error)
            if number == len(attempts) or is_out_of_memory(message):
                raise
            log.warning("session did not open", path=str(path), provider=providers[0][0], reason=message)
    raise AssertionError("each attempt returns or raises")


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # a name on the file system is not UTF-8
        return False
    return True


def read_external_data(options: ort.SessionOptions, path: Path, locations: frozenset[str]) -> list[bytes]:
    """Make the session of the graph at `path` read its external data from memory. Unlike mapped data, which ONNX
    Runtime copies when it packs weights, the files are read once.

    Return the contents, to keep as long as the session lives. `locations`: as the graph names its files. ONNX Runtime
    does not check the origin of bytes in memory. So nothing is read if any file is outside the graph's folder, symbolic
    links followed; ONNX Runtime then refuses the graph itself.
    """
    folder = path.parent.resolve()
    files = {location: (folder / location).resolve() for location in sorted(locations)}
    is_inside = all(
        file.is_relative_to(folder) and not Path(location).is_absolute() for location, file in files.items()
    )
    if not files or not is_inside:
        return []
    contents = [file.read_bytes() for file in files.values()]
    options.add_external_initializers_from_files_in_memory([*files], contents, [len(each) for each in contents])
    return contents


def run_with_bfloat16(
    session: ort.InferenceSession,
    inputs: Mapping[str, Value],
    output_names: tuple[str, ...],
    specs: Mapping[str, ValueSpec],
    options: ort.RunOptions,
) -> dict[str, Value]:
    """Run a session with bfloat16 inputs or outputs, which numpy has not: their bits pass in OrtValues.

    `specs`: of the inputs, by name. Raises InvalidModel for an input that is not a tensor.
    """
    feeds = {}
    for name, value in inputs.items():
        kind = specs[name].type
        if isinstance(kind, TensorType) and kind.dtype == "bfloat16" and isinstance(value, np.ndarray):
            feeds[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bfloat16_bits(value), _ONNX_BFLOAT16)
        elif isinstance(value, np.ndarray):
            feeds[name] = ort.OrtValue.ortvalue_from_numpy(value)
        else:
            raise InvalidModel(f'"{name}": expected a tensor beside bfloat16 tensors, got a {kind}')
    results = session.run_with_ort_values(list(output_names), feeds, options)
    return {name: _from_ort_value(value) for name, value in zip(output_names, results, strict=True)}


def bfloat16_bits(values: Array) -> Array:
    """Convert float32 to the bits of the nearest bfloat16, uint16, ties to even (IEEE 754); NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding up could carry a NaN's payload into infinity.
    halves: Array = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    return halves.reshape(values.shape)  # numpy made a scalar's array one-dimensional


def _from_ort_value(value: ort.OrtValue) -> Value:
    if not value.has_value():
        return None
    if value.is_tensor() and value.data_type() == "tensor(bfloat16)":
        size = value.tensor_size_in_bytes()
        raw = ctypes.string_at(value.data_ptr(), size) if size else b""
        bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(value.shape())
    result: Value = value.numpy()
    return result


def plain_message(error: Exception) -> str:
    """Reduce `[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : reason` to `reason`, on one line."""
    text = str(error).replace("\n", " ").strip()
    return text.split(" : ", 3)[-1] if text.startswith("[ONNXRuntimeError]") else f"{text or type(error).__name__}"


def _contains(message: str, signs: tuple[str, ...]) -> bool:
    lower = message.lower()
    return any(sign in lower for sign in signs)


def is_out_of_memory(message: str) -> bool:
    """Return whether a message of ONNX Runtime reports that memory ran out."""
    return _contains(message, _OUT_OF_MEMORY_SIGNS)


def is_final(message: str) -> bool:
    """Return whether a second run would fail too: memory ran out, or a call to CUDA or to its libraries failed."""
    return is_out_of_memory(message) or _contains(message, _CUDA_FAILURES)


def is_device_failure(message: str) -> bool:
    """Return whether a message of ONNX Runtime reports that an accelerator failed."""
    return _contains(message, _DEVICE_SIGNS)
