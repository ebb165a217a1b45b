"""Describe the bodies of the management routes of /v2 for OpenAPI."""

from typing import Any

from pydantic import ConfigDict, Field

from app.admin.bodies import DrainTimeout
from app.protocols.shared.bodies import Body, ResponseBody


class ServerLive(ResponseBody):
    """The process is alive."""

    live: bool


class ServerReady(ResponseBody):
    """Every start-up model is ready."""

    ready: bool


class ModelReady(ResponseBody):
    """The model accepts requests. If it is not in memory, the first request waits for its load."""

    name: str
    ready: bool


class ServerMetadata(ResponseBody):
    """The server and the extensions of the protocol that it supports."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(ResponseBody):
    """One input or output. `shape` includes all dimensions; -1 is a free one."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(ResponseBody):
    """A model. `versions`: those that accept requests."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfiguration(ResponseBody):
    """Triton's model configuration: the message ModelConfig as JSON. If `max_batch_size` is above 0, `dims` omit the
    first dimension.
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
    dynamic_batching: dict[str, Any] | None = Field(
        None, description="Absent if max_batch_size is 0, and for models with a state."
    )
    sequence_batching: dict[str, Any] | None = Field(None, description="Only for models with a state.")


class StatisticDuration(ResponseBody):
    """Number of events, and their total time in nanoseconds."""

    count: int
    ns: int


class InferStatistics(ResponseBody):
    """Statistics of requests. compute_input is their decoding, compute_output the encoding of the responses."""

    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class InferBatchStatistics(ResponseBody):
    """Statistics of all batches of one size."""

    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


class MemoryUsage(ResponseBody):
    """Memory of a loaded version. `type`: CPU or GPU. `id`: number of the device."""

    type: str
    id: int
    byte_size: int


class ModelStatistics(ResponseBody):
    """One version since the server's start. `last_inference`: Unix time in milliseconds, 0 before the first request."""

    name: str
    version: str
    last_inference: int
    inference_count: int = Field(description="Computed rows, or generated texts.")
    execution_count: int = Field(description="Batches, or steps of a model that generates text.")
    inference_stats: InferStatistics
    batch_stats: list[InferBatchStatistics]
    memory_usage: list[MemoryUsage]
    response_stats: dict[str, Any]


class ModelStatisticsList(ResponseBody):
    """Statistics of one version, of all versions of a model, or of all models."""

    model_stats: list[ModelStatistics]


class _OptionalBody(Body):
    """Base of the bodies that may be omitted. Triton's clients send more fields, which are ignored."""

    model_config = ConfigDict(extra="ignore")


class RepositoryIndexRequest(_OptionalBody):
    """Filter of the repository index. The body may be omitted."""

    ready: bool = Field(False, description="List only versions that accept requests.")


class ModelIndex(ResponseBody):
    """A version of a model. `state`: READY, LOADING, UNLOADING or UNAVAILABLE. `reason`: of the state."""

    name: str
    version: str
    state: str
    reason: str


class UnloadParameters(_OptionalBody):
    """Parameters of an unload; others are ignored."""

    drain_timeout_s: DrainTimeout = None


class RepositoryUnloadRequest(_OptionalBody):
    """Parameters of an unload. The body may be omitted."""

    parameters: UnloadParameters = UnloadParameters()


class RepositoryLoadRequest(_OptionalBody):
    """Parameters of a load. The body may be omitted."""

    parameters: dict[str, Any] = Field({}, description="`config` and `file:…` are not supported; others are ignored.")


class RepositoryModelResponse(ResponseBody):
    """An empty object: the load or unload is complete."""
