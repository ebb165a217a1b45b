"""Settings of models: `[models]` and its entries.

The docstrings of the fields are the texts of the manual's configuration reference. A sentence that begins with `None:`
describes the default.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, PlainValidator

from frameworks.core.addresses import Scheme, SourceAddress
from frameworks.core.names import Aliases, ModelName
from frameworks.core.settings.adapters import Adapters
from frameworks.core.settings.entry_values import (
    Provider,
    VersionPolicy,
    beside_isolation,
    beside_one_device,
    beside_sequence_axis,
    canonical_dtype,
    canonical_provider,
    checked_cpus,
    checked_device,
    checked_version_policy,
    order_of_preference,
    without_input_values,
    without_lookup,
    without_other_copies,
)
from frameworks.core.settings.images import ImageSettings
from frameworks.core.settings.states import States, without_other_keys
from frameworks.core.settings.values import (
    GivenTensor,
    ReplicaRange,
    as_address,
    as_replicas,
    as_tables,
    beside_local_path,
    cache_folder,
    checked_model_path,
    checked_npz_name,
    checked_pad_values,
    checked_path,
    checked_quantized,
    checked_replicas,
    checked_source,
    checked_warm_up,
)
from memory.settings import SETTINGS_RULES
from memory.sizes import Bytes

Dtype = Literal["f32", "f16", "bf16", "int8", "int4"]
Kernels = Literal[
    "auto", "plain", "compiled", "compiled-f16", "onednn", "mkl", "fbgemm", "torch", "float32", "weight-only"
]
GraphKernels = Literal["onnxruntime", "compiled", "auto"]
Isolation = Literal["none", "process"]
ToolFormat = Literal["hermes", "llama3_json", "mistral", "mistral_args", "pythonic"]
"""`hermes`: `<tool_call>{"name": …, "arguments": …}</tool_call>`, of Hermes and Qwen. `llama3_json`: the whole text is
`{"name": …, "parameters": …}`. `mistral`: `[TOOL_CALLS][{"name": …, "arguments": …}]`. `mistral_args`:
`[TOOL_CALLS]name[ARGS]{…}`. `pythonic`: the whole text is `[name(key=value)]`.
"""

RAY_KEYS = ("replicas", "num_cpus", "num_gpus", "replica_group")
"""Keys of a model's entry that apply to a deployment on Ray."""

SettingsPath = Annotated[Path, BeforeValidator(checked_path)]
ModelPath = Annotated[
    Path | SourceAddress,
    PlainValidator(checked_model_path, json_schema_input_type=str),
    PlainSerializer(str, return_type=str),
]
SourcePrefix = Annotated[
    SourceAddress | Scheme,
    PlainValidator(checked_source, json_schema_input_type=str),
    PlainSerializer(as_address, return_type=str),
]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
ScoreToken = Annotated[str, Field(min_length=1, max_length=128)]


class ModelEntry(BaseModel):
    """Keys of every model, in config.toml and in the body of `POST /models`."""

    model_config = SETTINGS_RULES
    # Old name of a key → its name. An old name is accepted with a warning.
    deprecated_keys: ClassVar[Mapping[str, str]] = MappingProxyType({})

    name: ModelName
    """Name in requests: `name` or `org/name`, at most 128 letters, digits, `.`, `-` and `_`. Each part begins with a
    letter or a digit. No two models have the same name."""
    aliases: Aliases = ()
    """Further names in requests, at most 64. No model has one of them as its name or alias. Default: none."""
    path: ModelPath
    """ONNX: a file, or a folder with `model.onnx` or `onnx/model.onnx`. PyTorch: a Hugging Face folder, a
    GGUF file, or a folder with one and its `mmproj` file. Each may be a folder of version folders, `1/`, `2/`, or an
    address, like `hf://org/name@revision`. A relative path starts at the folder of the config file."""
    max_batch_size: Count | None = None
    """Maximum rows in one batch of this model. Of a language model: maximum texts that run at once. None: as in
    `[performance]`."""
    max_queue_delay_ms: Annotated[float, Field(ge=0, le=60_000)] = 0.0
    """Maximum time that a batch waits for more rows while an instance is free."""
    max_batch_tokens: Count | None = None
    """Maximum of rows times the longest row in a batch, for texts and for models with a `sequence_axis`. None: no
    bound."""
    task: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Task of the model, by its name in transformers, such as `"fill-mask"` or
    `"zero-shot-classification"`; or `"embed"`, `"classify"`, `"generate"`. It must be one that the class in
    `config.json` can do. None: the task of the class."""
    instances: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of copies that run in parallel in each process, each in a thread of its own. Language models: 1."""
    load: Literal["startup", "lazy"] = "startup"
    """When the model is loaded: at start-up, or with its first request."""
    pinned: bool = False
    """Whether the model is never evicted."""
    min_cosine: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum cosine between the outputs of a quantized model and of its original, for the worst warm-up input. A model
    below it is refused. None: 0.97; for int4 0.9."""
    version_policy: Annotated[
        VersionPolicy,
        PlainValidator(checked_version_policy),
        AfterValidator(beside_local_path),
        PlainSerializer(lambda each: each),
    ] = "latest"
    """Which version folders are served: `"latest"`, `"all"`, or a list like `[1, 3]`."""
    watch: Annotated[bool, AfterValidator(beside_local_path)] = False
    """Whether changed files are loaded as a new version while the old one serves."""
    max_queue_size: Count | None = None
    """Maximum queued requests of this model; more are refused with 503. A request for `n` texts counts as `n`.
    None: only the bound of `[scheduling]`."""
    max_concurrent_requests: Count | None = None
    """Maximum requests of this model in progress, until their responses are sent. None: no bound."""
    cache: bool = False
    """Whether responses are cached for equal requests, within `[cache]`. Generated texts are not cached."""
    allow_pickled_weights: bool = False
    """Encoders of texts: whether `pytorch_model.bin` is read where a module has no `model.safetensors`, and
    heads of further vectors, with `torch.load(weights_only=True)`. Only for files that you trust."""
    downloadable: bool = False
    """Whether keys with the scope `read` may fetch the files of the model from `/models/{name}/files`. The web page can
    then run it in the browser."""
    token_ids: Literal["own"] | None = None
    """Embedding models: `"own"` lets `/v1/embeddings` accept token ids of this model, as `/v1/tokenize` returns them.
    None: only texts."""
    dimensions: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=64)] | None = None
    """Embedding models of texts: the shorter sizes to which requests may truncate embeddings, for models that were
    trained for it (Matryoshka). None: those that the files of the model name."""
    isolation: Isolation | None = None
    """Where the model runs: `"none"` in the server's process, `"process"` in a process of its own, whose crash ends no
    other model. None: as in `[performance]`; `"process"` for several devices."""
    device: Annotated[str | tuple[str, ...], BeforeValidator(checked_device), AfterValidator(beside_isolation)] = "auto"
    """Device: `"auto"`, `"cuda"`, `"cuda:N"`, `"mps"` or `"cpu"`. A list has an engine process for each of its 1 to 64
    names, which may repeat; `"cuda:*"` has one for each CUDA device."""
    max_batch_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Maximum time of one batch or step; then the model's process is ended and started again. Only with `isolation =
    "process"`. None: no bound."""
    max_process_memory: Annotated[Bytes, Field(ge=1)] | None = None
    """Maximum memory that the model's process may allocate, PyTorch weights included; an allocation beyond it fails.
    Linux, and only with `isolation = "process"`. None: no bound."""
    niceness: Annotated[int, Field(ge=0, le=19)] | None = None
    """Added to the niceness of the server, for the model's process: with 10 or more any busy process on its cores goes
    first. Only with `isolation = "process"`. None: 0, and 10 for `roundhouse run` and for shadow versions."""
    replicas: (
        Annotated[
            int | ReplicaRange, PlainValidator(checked_replicas), PlainSerializer(as_replicas, return_type=int | dict)
        ]
        | None
    ) = None
    """Number of replicas, each a process with the model on any node; or `{ min = 0, max = 4 }`, within which Ray
    follows the load. With `min = 0` the first request waits for a replica. Only on Ray, where None is 1."""
    num_cpus: Annotated[float, Field(ge=0, le=1024)] | None = None
    """CPUs that Ray reserves for each replica. Only on Ray, where None is 1."""
    num_gpus: Annotated[float, Field(ge=0, le=64)] | None = None
    """GPUs that Ray reserves for each replica; a part like 0.25 lets several share a GPU. Only on Ray, where None
    is the share that the files of the model need, or 0 in a cluster without GPUs."""
    replica_group: str | None = None
    """Name of one of `[[ray.groups]]`: the model shares the replicas of the group with others, within a budget of
    memory. Only on Ray and with `load = "lazy"`. None: replicas of its own."""
    cpus: Annotated[str, BeforeValidator(checked_cpus)] | None = None
    """CPUs of each process of the model, like `"4-7"` or `"0,2-3"`. Linux, and only with `isolation = "process"`. None:
    those of the server."""

    @property
    def num_ranks(self) -> int:
        """Number of devices that one process of the model needs."""
        return 1

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    def with_paths(self, resolve: Callable[[Path], Path], folders: Mapping[str, Path]) -> Self:
        """Return the entry with the paths of its adapters and of its draft model as `resolve` returns them.

        `folders`: by name, of the models that may be the draft model.
        """
        return self


class OnnxModelEntry(ModelEntry):
    """One `[[models.onnx_models]]` entry."""

    input_shape: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Shape with a number for every dimension, free ones too. It is checked against the graph and used for warm-up.
    None: the graph's shape."""
    quantized: Annotated[bool | Literal["mixed"], BeforeValidator(checked_quantized)] | None = None
    """`true` serves a dynamic int8 copy; `"mixed"` keeps the most sensitive MatMuls in fp32. None: `false`."""
    execution_providers: (
        Annotated[
            tuple[Annotated[Provider, BeforeValidator(canonical_provider)], ...],
            Field(strict=False),
            AfterValidator(order_of_preference),
        ]
        | None
    ) = None
    """Providers of ONNX Runtime in order of preference, in any case; its own names too. None: all that are installed,
    in this order."""
    kernels: Annotated[GraphKernels, AfterValidator(without_other_copies)] = "onnxruntime"
    """Kernels that compute the graph. `"compiled"`: for encoders of texts on a CPU, the compiled layers of PyTorch
    models with the weights of the graph; the load compares them with ONNX Runtime. `"auto"` measures both at load. Both
    import PyTorch."""
    cuda_graph: bool = False
    """Whether the model runs as captured CUDA graphs, one for each power of two of rows up to `max_batch_size`. Only on
    CUDA with `isolation = "process"`, for graphs without control flow whose only free dimension is the rows."""
    sequence_axis: Annotated[int, Field(ge=1, le=31)] | None = None
    """Axis of the sequence in every input where that axis is free. Rows of different lengths are padded to share a
    batch if a trial at warm-up shows that padding changes no output. None: rows of one length share a batch."""
    pad_values: (
        Annotated[
            tuple[tuple[str, float], ...],
            PlainValidator(checked_pad_values),
            AfterValidator(beside_sequence_axis),
            PlainSerializer(dict),
        ]
        | None
    ) = None
    """Padding value of each input, like `{ input_ids = 0 }`. None: 0 for every input."""
    mask_input: Annotated[str, Field(min_length=1), AfterValidator(beside_sequence_axis)] | None = None
    """Input that is 1 for real elements and 0 for padding; a request may omit it. None: no input is a mask."""

    input_values: (
        Annotated[str, Field(min_length=1), AfterValidator(checked_npz_name), AfterValidator(beside_local_path)] | None
    ) = None
    """NumPy `.npz` file with a tensor for each input, in the folder of the graph. The model runs on it at warm-up, and
    is refused if the graph refuses it. None: made-up values."""
    warm_up: (
        Annotated[
            tuple[tuple[tuple[str, GivenTensor], ...], ...],
            PlainValidator(checked_warm_up),
            AfterValidator(without_input_values),
            PlainSerializer(as_tables),
        ]
        | None
    ) = None
    """The same in the entry itself, a table for each run: `[[models.onnx_models.warm_up]]`. A value is a nested list,
    or `{ shape = […], data = […] }`. None: made-up values."""
    image: ImageSettings | None = None
    """How images become the input of the graph, a table of its own. None: as `preprocessor_config.json` beside the
    graph says; without that file, the model reads tensors only."""
    state: Annotated[States, AfterValidator(without_other_keys)] | None = None
    """Inputs and outputs that carry a state from one step of a sequence to the next, a table each. `"auto"` finds pairs
    of one dtype and shape with related names, like `h` and `hn`. None: the model has no state."""
    max_state_bytes: Annotated[Bytes, Field(ge=1)] = 64 * 1024**2
    """Models with a state: maximum memory of the states of all sequences; further sequences are refused with 503. It is
    part of the memory of the model."""
    max_sequence_idle_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Models with a state: a sequence without a step for as long is ended."""


class TorchModelEntry(ModelEntry):
    """One `[[models.torch_models]]` (or `[[models.candle_models]]`) entry."""

    deprecated_keys: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"kv_cache": "kv_cache_bytes", "max_step_tokens": "max_num_batched_tokens"}
    )

    model_type: Annotated[str, Field(min_length=1)] | None = None
    """Family of the model, like `"bert"` or `"llama"`. None: read from `config.json`."""
    dtype: Annotated[Dtype, BeforeValidator(canonical_dtype)] | None = None
    """Type of the weights; `float32`, `fp16`, `bfloat16` and similar names are accepted too. `"int4"`: language models
    on a CPU, or on CUDA from Ampere on. None: the fastest type of the device."""
    kernels: Kernels = "auto"
    """On a CPU: kernel of the products. `"auto"` measures at load which is fastest, for language models for each
    shape; a name forces one. Other models than language models have `"auto"`, `"plain"`, `"onednn"` and
    `"compiled"`."""
    kv_cache_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Language models: memory for the keys and values of running texts and of cached prefixes, on all devices of
    `tensor_parallel` together. None: enough for `max_batch_size` texts of the whole context, at most 1 GiB on a CPU,
    2 GiB on MPS and 4 GiB on CUDA."""
    kv_cache_dtype: Literal["auto", "f32", "bf16", "f16", "fp8"] = "auto"
    """Language models: type of the keys and values. `"auto"`: that of the model, f32 beside int8 and int4 unless the
    file has bf16. `"fp8"`: 8 bits, on CUDA from Ampere on."""
    max_num_batched_tokens: Count | None = None
    """Language models: maximum tokens computed in one step, prefill and decode together. None: 512; MPS 1024, CUDA
    2048."""
    speculation: Literal["none", "lookup"] = "none"
    """Language models: `"lookup"` proposes the next tokens of a text as they followed the same words before, in the
    prompt or in the text, and a step checks them all. `"none"` proposes nothing, unless there is a `draft_model`."""
    draft_model: Annotated[SettingsPath, AfterValidator(without_lookup)] | None = None
    """Language models: a smaller model with the same tokenizer, which proposes the next tokens of a text. The name of
    another model of the server, or the path of a folder or a GGUF file. None: no draft model."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] = 15
    """Language models: maximum tokens proposed for a text in one step."""
    tool_format: ToolFormat | None = None
    """Language models: format of tool calls, `"hermes"`, `"llama3_json"`, `"mistral"`, `"mistral_args"` or
    `"pythonic"`. None: as the chat template shows."""
    score_tokens: Annotated[tuple[ScoreToken, ScoreToken], Field(strict=False)] | None = None
    """Language models that rank: tokens of a negative and of a positive answer, like `["no", "yes"]`. A pair is scored
    by the difference of their logits. None: as the `LogitScore` module of the folder; without one the model generates
    text."""
    adapters: Adapters = ()
    """Language models: LoRA adapters, a table each: `[[models.torch_models.adapters]]`. Default: none."""
    vision: bool = True
    """Language models that see: whether they read images. `false` leaves the vision part unloaded, and serves texts
    alone."""
    max_images: Annotated[int, Field(ge=1, le=256)] = 16
    """Models that see: maximum images and videos of one conversation, or images of one request to embed."""
    max_image_pixels: Annotated[int, Field(ge=1, le=50_000_000)] = 50_000_000
    """Models that see: maximum pixels of one image, before any is decoded."""
    max_video_frames: Annotated[int, Field(ge=1, le=4096)] = 256
    """Language models that see: maximum frames that the model reads of the videos of one conversation."""
    max_video_seconds: Annotated[int, Field(ge=1, le=600)] = 120
    """Language models that see: maximum length of one video."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64), AfterValidator(beside_one_device)] = 1
    """Llama, Mistral, Qwen2 and Qwen3: number of devices that compute each step together, each with a part of every
    layer: the `cuda:N` of `device` and those after it, or as many processes on the CPU. More than 1 implies
    `isolation = "process"`. It has not run on GPUs yet."""

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel

    def with_paths(self, resolve: Callable[[Path], Path], folders: Mapping[str, Path]) -> Self:
        changed: dict[str, object] = {}
        if self.adapters:
            changed["adapters"] = tuple(each.model_copy(update={"path": resolve(each.path)}) for each in self.adapters)
        if self.draft_model is not None:
            named = folders.get(str(self.draft_model))
            changed["draft_model"] = resolve(self.draft_model) if named is None else named
        return self.model_copy(update=changed) if changed else self


class ModelsSettings(BaseModel):
    """`[models]`: the models, and the folders of others. app.config checks that names are unique."""

    model_config = SETTINGS_RULES

    cache_dir: SettingsPath = Field(default_factory=cache_folder)
    """Folder for quantized copies and for weights of graphs with compiled layers, in its subfolder `quantized`, for
    models fetched from addresses, in `sources`, for kernels compiled for this CPU, in `compiled`, and for engines of
    TensorRT, in `tensorrt`; created when first needed. None: the user's cache folder, on Linux
    `~/.cache/roundhouse`."""
    max_model_size: Annotated[Bytes, Field(ge=1)] | None = None
    """Maximum size of the weights on disk; a larger model is refused. Default: what fits into the memory for models."""
    roots: Annotated[tuple[SettingsPath, ...], Field(strict=False)] = (Path("./models"),)
    """The only folders from which `POST /models` may register models."""
    sources: Annotated[tuple[SourcePrefix, ...], Field(strict=False)] = ()
    """Addresses from which `POST /models` may register models, or their beginnings: `"hf://"`, `"hf://org"`,
    `"s3://bucket/folder"`, `"https://host"`. Default: none."""
    max_download_bytes: Annotated[Bytes, Field(ge=1)] = 20 * 1024**3
    """Maximum size of the files of one model that is fetched from an address; a larger model is refused."""
    default_model: Annotated[str, Field(min_length=1)] | None = None
    """Model of a gRPC `Predict` that names none. None: no model."""
    onnx_models: Annotated[tuple[OnnxModelEntry, ...], Field(strict=False)] = ()
    """ONNX models, one table each."""
    torch_models: Annotated[tuple[TorchModelEntry, ...], Field(strict=False)] = ()
    """PyTorch models, one table each; `candle_models` is another name of this list."""
