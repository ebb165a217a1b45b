"""What config.toml says about models and how they run: `[models]`, `[performance]`, `[scheduling]`."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationInfo

from memory.settings import SETTINGS_RULES
from memory.sizes import Bytes

Provider = Literal["TensorRT", "CUDA", "ROCm", "CoreML", "DirectML", "OpenVINO", "CPU"]
Dtype = Literal["f32", "f16", "bf16", "int8"]
VersionPolicy = Literal["latest", "all"] | tuple[int, ...]

EXECUTION_PROVIDERS: tuple[Provider, ...] = get_args(Provider)
"""Our names of ONNX Runtime's execution providers, in the order they are preferred when a model names none."""

_PROVIDER_BY_LOWER_NAME = {name.lower(): name for name in EXECUTION_PROVIDERS} | {"dml": "DirectML"}
_DTYPE_BY_SPELLING = {
    "float32": "f32", "fp32": "f32", "float16": "f16", "fp16": "f16", "bfloat16": "bf16",
}  # fmt: skip
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", re.ASCII)


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("wants the path of a file or folder, in quotes")
    return Path(value)


def _canonical_provider(value: object) -> object:
    """Takes any case, and ONNX Runtime's own names ("CUDAExecutionProvider"); the type refuses what stays unknown."""
    if not isinstance(value, str):
        return value
    return _PROVIDER_BY_LOWER_NAME.get(value.lower().removesuffix("executionprovider"), value)


def _order_of_preference(providers: tuple[Provider, ...]) -> tuple[Provider, ...]:
    if not providers:
        raise ValueError('wants at least one name, like ["CPU"] (leave the key out to use all that are installed)')
    return tuple(dict.fromkeys(providers))


def _canonical_dtype(value: object) -> object:
    return _DTYPE_BY_SPELLING.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _device(value: object) -> str:
    device = value.lower() if isinstance(value, str) else ""
    if not _DEVICE.fullmatch(device):
        raise ValueError('wants one of "auto", "cuda", "cuda:1" (a GPU by its number), "mps", "cpu"')
    return device


def _quantized(value: object) -> object:
    if not isinstance(value, bool) and value != "mixed":
        raise ValueError('wants true, false or "mixed"')
    return value


def _pad_values(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("wants a table of input names and numbers, like { input_ids = 0 }")
    for name, number in value.items():
        if type(number) is not int and not (type(number) is float and math.isfinite(number)):
            raise ValueError(f'wants a number for "{name}"')
    return tuple(value.items())


def _beside_sequence_axis(value: Any, info: ValidationInfo) -> Any:
    if info.data.get("sequence_axis", 1) is None:
        raise ValueError("goes with sequence_axis, which is not set")
    return value


def _version_policy(value: object) -> VersionPolicy:
    if value == "latest" or value == "all":  # noqa: PLR1714 - each is a literal of its own
        return value
    if isinstance(value, list | tuple) and value and all(type(item) is int and item >= 1 for item in value):
        return tuple(sorted(set(value)))
    raise ValueError('wants "latest", "all" or a list of version numbers, like [1, 3]')


SettingsPath = Annotated[Path, BeforeValidator(_path)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class ModelEntry(BaseModel):
    """What any model may say of itself, in config.toml or in `POST /models`. None: the server's own default holds."""

    model_config = SETTINGS_RULES

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    path: SettingsPath
    """A file or folder; LoadedSettings.resolve makes a relative one absolute."""
    max_batch_size: Count | None = None
    max_queue_delay_ms: Annotated[float, Field(ge=0, le=60_000)] = 0.0
    """How long a batch may wait for others to join it, where an instance is free."""
    max_batch_tokens: Count | None = None
    """Rows times the longest of a batch. None: no bound but `max_batch_size`."""
    instances: Annotated[int, Field(ge=1, le=1024)] = 1
    """How often the model stands ready, each on a thread of its own."""
    load: Literal["startup", "lazy"] = "startup"
    """lazy: when it is first asked for."""
    pinned: bool = False
    """Whether it stays in memory, whatever else is asked for."""
    min_cosine: Annotated[float, Field(ge=0, le=1)] | None = None
    version_policy: Annotated[VersionPolicy, PlainValidator(_version_policy)] = "latest"
    """Which of the version folders are served."""
    watch: bool = False
    """Whether a changed folder is noticed and loaded beside what is served."""
    max_queue_size: Count | None = None
    """Requests that may wait for this model. None: as many as for the whole server."""
    max_concurrent_requests: Count | None = None
    """Requests to this model that may be under way, until their answer has left. None: no bound."""
    cache: bool = False
    """Whether answers are kept for the same question, within `[cache]`."""


class OnnxModelEntry(ModelEntry):
    """One `[[models.onnx_models]]` entry."""

    input_shape: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Checked against the graph and used for warm-up; every dimension is a number, also the free ones."""
    quantized: Annotated[bool | Literal["mixed"], BeforeValidator(_quantized)] | None = None
    execution_providers: (
        Annotated[
            tuple[Annotated[Provider, BeforeValidator(_canonical_provider)], ...],
            Field(strict=False),
            AfterValidator(_order_of_preference),
        ]
        | None
    ) = None
    """Names out of EXECUTION_PROVIDERS, in order of preference; None: all that are installed, in that order."""
    sequence_axis: Annotated[int, Field(ge=1, le=31)] | None = None
    """The axis that is the sequence in every input where it is free: rows of different lengths are then padded to share
    a batch, if a trial at warm-up shows that padding changes no answer."""
    pad_values: (
        Annotated[tuple[tuple[str, float], ...], PlainValidator(_pad_values), AfterValidator(_beside_sequence_axis)]
        | None
    ) = None
    """EncodedResponse as a table of input name and number; an input that is not named is padded with 0."""
    mask_input: Annotated[str, Field(min_length=1), AfterValidator(_beside_sequence_axis)] | None = None
    """The input that is 1 on what is real and 0 on padding; a caller may leave it out."""


class TorchModelEntry(ModelEntry):
    """One `[[models.torch_models]]` (or `[[models.candle_models]]`) entry."""

    model_type: Annotated[str, Field(min_length=1)] | None = None
    """The family ("bert", "llama"); None: as the folder's config.json says."""
    device: Annotated[str, BeforeValidator(_device)] = "auto"
    """One of "auto", "cuda", "cuda:N", "mps", "cpu"."""
    dtype: Annotated[Dtype, BeforeValidator(_canonical_dtype)] | None = None
    """None: what the device is fastest at."""
    kv_cache: Annotated[Bytes, Field(ge=1)] | None = None
    """Of a generating model: bytes for the keys and values of the texts that run, and of those that are remembered."""
    max_step_tokens: Count | None = None
    """Of a generating model: tokens computed in one step, prompts and texts together."""


class ModelsSettings(BaseModel):
    """`[models]`: which models there are, and where others may come from. Names are unique: app.config checks that."""

    model_config = SETTINGS_RULES

    cache_dir: SettingsPath = Path("./models")
    """Quantised copies are kept in `quantized` below it."""
    max_model_size: Annotated[Bytes, Field(ge=1)] = 2 * 1024**3
    """Bytes of weights on disk; a larger model is refused."""
    roots: Annotated[tuple[SettingsPath, ...], Field(strict=False)] = (Path("./models"),)
    """The only folders from which models may be registered at run time."""
    default_model: Annotated[str, Field(min_length=1)] | None = None
    """Of a gRPC Predict that names none."""
    onnx_models: Annotated[tuple[OnnxModelEntry, ...], Field(strict=False)] = ()
    torch_models: Annotated[tuple[TorchModelEntry, ...], Field(strict=False)] = ()


class PerformanceSettings(BaseModel):
    """`[performance]`: defaults for every model."""

    model_config = SETTINGS_RULES

    max_batch_size: Count = 32
    intra_op_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads one operator may use; None: as many as usable_cpus() says."""
    inter_op_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    enable_gpu: bool = True
    enable_tensorrt: bool = False
    enable_quantization: bool = True
    """False: `quantized` and `dtype = "int8"` of the entries are not applied."""

    def num_intra_op_threads(self, instances: int = 1) -> int:
        """Threads one operator uses: intra_op_threads, or the CPUs this process may use. Several instances of a model
        divide the CPUs, so that all of them together never have more threads than there are.
        """
        wanted = usable_cpus() if self.intra_op_threads is None else self.intra_op_threads
        return wanted if instances == 1 else max(1, min(wanted, usable_cpus() // instances))


class SchedulingSettings(BaseModel):
    """`[scheduling]`: how much may wait, and for how long."""

    model_config = SETTINGS_RULES

    max_queue_size: Count = 1024
    """Requests that may wait, of all models together; a model's own key bounds those that wait for it."""
    max_concurrent_requests: Count | None = None
    """Requests that may be under way, from their first byte until their answer has left. None: no bound."""
    default_timeout_ms: Count | None = None
    """The deadline of a request that names none; None: it has none."""
    ageing_ms: Annotated[float, Field(gt=0)] = 1000.0
    """After how long a waiting request gains a level of priority."""


def usable_cpus(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs this process may use: its affinity mask, cut to a container's CPU quota (cgroup v2) where one is set."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file (not Linux), or "max": no quota
        return count
