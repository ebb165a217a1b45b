"""What the OpenAPI document says of the protocol's answers beside inference."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Described(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class ServerLive(_Described):
    """The process works."""

    live: bool


class ServerReady(_Described):
    """Every start-up model is ready."""

    ready: bool


class ModelReady(_Described):
    """The model answers, perhaps after a load that is waited for."""

    name: str
    ready: bool


class ServerMetadata(_Described):
    """The server, and which of Triton's extensions it has."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(_Described):
    """One input or output. `shape` is whole, with -1 for a free dimension."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(_Described):
    """A model. `versions`: that may be asked for."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfiguration(_Described):
    """Triton's model configuration, the message ModelConfig as JSON. Where `max_batch_size` is above 0, `dims` leave
    the first dimension out.
    """

    name: str
    platform: str
    backend: str
    runtime: str
    version_policy: dict[str, Any]
    max_batch_size: int
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    batch_input: list[dict[str, Any]]
    batch_output: list[dict[str, Any]]
    instance_group: list[dict[str, Any]]
    default_model_filename: str
    cc_model_filenames: dict[str, str]
    metric_tags: dict[str, str]
    parameters: dict[str, dict[str, str]]
    model_warmup: list[dict[str, Any]]
    model_transaction_policy: dict[str, bool]
    response_cache: dict[str, bool]
    dynamic_batching: dict[str, Any] | None = Field(None, description="Left out where max_batch_size is 0.")


class StatisticDuration(_Described):
    """How often, and how many nanoseconds in all."""

    count: int
    ns: int


class InferStatistics(_Described):
    """Of requests. Reading the question counts as compute_input, writing the answer as compute_output."""

    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class InferBatchStatistics(_Described):
    """Of the batches of one size."""

    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


class MemoryUsage(_Described):
    """What a loaded version takes. `type`: CPU or GPU, `id`: which."""

    type: str
    id: int
    byte_size: int


class ModelStatistics(_Described):
    """Of one version since the server's start. `last_inference`: milliseconds since 1970, 0 where there was none."""

    name: str
    version: str
    last_inference: int
    inference_count: int = Field(description="rows that were computed, or texts generated")
    execution_count: int = Field(description="batches that ran, or steps of a model that generates text")
    inference_stats: InferStatistics
    batch_stats: list[InferBatchStatistics]
    memory_usage: list[MemoryUsage]
    response_stats: dict[str, Any]


class ModelStatisticsList(_Described):
    """Of one version, of a model's, or of all."""

    model_stats: list[ModelStatistics]


class RepositoryIndexRequest(_Described):
    """The body may be left out."""

    ready: bool = Field(False, description="Only what answers.")


class ModelIndex(_Described):
    """A version of a model. `state`: READY, LOADING, UNLOADING or UNAVAILABLE, and why."""

    name: str
    version: str
    state: str
    reason: str


class RepositoryModelRequest(_Described):
    """The body may be left out."""

    parameters: dict[str, Any] = Field({}, description="`config` and files are not supported; others are harmless.")


class Done(_Described):
    """Nothing is left to say."""
