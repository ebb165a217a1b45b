"""Response bodies of /models and of the routes below it."""

from typing import Any, Literal

from pydantic import Field

from app.admin.progress import WorkDescription
from app.protocols.shared.bodies import ResponseBody
from frameworks.generation.sources import SourceTask
from frameworks.types import Vectors


class TensorDescription(ResponseBody):
    """One input or output. In `shape`, -1 is a free dimension; null means that the model declares no shape."""

    name: str
    dtype: str
    shape: list[int] | None


class ImageInput(ResponseBody):
    """How the model reads images. `height`, `width`: in pixels, of every image after its preparation; null where they
    depend on the image.
    """

    height: int | None
    width: int | None
    labels: int | None = Field(description="Number of labels of a classifier; null for other models.")
    embedding_size: int | None = Field(description="Dimensions of an embedding; null for other models.")


class KernelTiming(ResponseBody):
    """One product of a layer, measured when the model was loaded. `original`: that of a model without quantization."""

    kernel: str
    weights: str = Field(description="Range of the weights, as in `quantization`; empty for other weights.")
    error: float = Field(
        description="Root mean square error of a product, relative to the original's; 0 where it was not measured."
    )
    milliseconds: dict[str, float] = Field(
        description="By number of rows, on one thread; fewer numbers for a product that is far slower than others."
    )


class Quantization(ResponseBody):
    """Result of the quantization. Cosine similarities compare the outputs for the warm-up inputs with the original."""

    scheme: str
    cosine_min: float
    cosine_mean: float
    speedup: float = Field(
        description="Median time of the original divided by that of the quantized model, measured when it was made."
    )
    bytes_before: int
    bytes_after: int
    original_ms: float = Field(description="Median time of the original for all warm-up inputs.")
    quantized_ms: float = Field(description="Median time of the quantized model for all warm-up inputs.")
    kernel: str = Field(description="The library whose int8 product is used.")
    weights: str = Field(
        description="Range of the weights in which no sum saturates on this CPU: whole, paired or halved."
    )
    kernels: list[KernelTiming] = Field(description="Measured products; empty for ONNX models and on a GPU.")
    perplexity: float | None = Field(
        description="Language models: perplexity on a text that no model was trained on; null for other models."
    )
    perplexity_original: float | None = Field(description="The same of the original.")


class ProductTiming(ResponseBody):
    """The kernel of the layers of one shape of a language model on a CPU."""

    outputs: int
    inputs: int
    layers: int = Field(description="Number of the layers of this shape.")
    kernel: str
    weights: str = Field(description="Range of the weights, as in `quantization`; empty for other weights.")
    trials: list[KernelTiming] = Field(description="Measured kernels; empty for one kernel alone and for small shapes.")


class ConversationImages(ResponseBody):
    """The bounds of the images and videos of a conversation."""

    max_images: int = Field(description="Images and videos.")
    max_image_pixels: int = Field(description="Of each image.")
    max_video_frames: int = Field(description="Of all videos, as the model reads them.")
    max_video_seconds: int = Field(description="Of each video.")
    no_videos_because: str | None = Field(description="Why the model reads no videos; null: it reads them.")


class RequestCounts(ResponseBody):
    """Requests to the model since the server's start: those of the key's tenant, or for an operator all."""

    total: int
    failed: int
    inflight: int


class TaskParameterDescription(ResponseBody):
    """A parameter of a task, by transformers' name. Null: without a default, or without that bound."""

    name: str
    type: str
    default: Any
    minimum: float | None
    maximum: float | None
    choices: list[str]
    required: bool
    description: str


class SourceDescription(ResponseBody):
    """How a model with an encoder reads prompts, and what its files say of its texts."""

    task: SourceTask
    max_tokens: int = Field(description="Tokens that the encoder reads.")
    max_new_tokens: int | None = Field(description="Of a text for which a request states none; null: the context.")
    num_beams: int = Field(description="Of the search, unless a request names another number.")
    source_languages: list[str] = Field(description="Those that a request may name; empty for one language.")
    target_languages: list[str]


class ModelDescription(ResponseBody):
    """A registered model. Fields that need a loaded model are null while it is not loaded."""

    name: str
    aliases: list[str]
    framework: str
    task: str | None
    state: str
    reason: str | None
    versions: list[str]
    device: str | None
    dtype: str | None
    quantized: bool
    downloadable: bool = Field(description="Whether its files may be fetched, as its entry says.")
    quantization: Quantization | None
    kernels: list[ProductTiming] = Field(
        description="Kernels of a language model on a CPU, or of its quantized layers on a GPU, most weights first; of "
        "an ONNX encoder with `kernels`, those that were chosen."
    )
    awaits_kernels: bool = Field(
        description="Whether kernels are being compiled for this CPU, which may replace those in `kernels`."
    )
    progress: WorkDescription | None = Field(description="The long work for the model; null while there is none.")
    memory_bytes: int | None
    attention: str | None = Field(
        description="paged, or transformers and the reason why its own caches are used; null without text generation."
    )
    vision: ConversationImages | None = Field(
        description="Of a language model that sees: the bounds of the images of a conversation; null for others."
    )
    source: SourceDescription | None = Field(
        description="Of a model with an encoder: how it reads prompts; null for others."
    )
    graphs: str | None = Field(
        description="Which runs or decode steps are CUDA graphs, or none and the reason; null for others."
    )
    warm_up: str | None = Field(description="done, or the reason why the model was not run at warm-up.")
    inputs: list[TensorDescription] | None
    outputs: list[TensorDescription] | None
    image: ImageInput | None = Field(description="null for a model that reads no images.")
    vectors: Vectors | None = Field(description="Those of a model that embeds texts; null for other models.")
    other_vectors: list[Vectors] | None = Field(
        description="Kinds that `vectors` of a request may also name; null for models that embed no texts."
    )
    reads: list[str] | None = Field(
        description="The fields of one input of the model's task; null for tasks without `parameters`."
    )
    parameters: list[TaskParameterDescription] | None = Field(
        description="The parameters of the model's task; null for tasks without `parameters`."
    )
    last_used: str | None = Field(description="Time of the last counted request: ISO 8601, UTC.")
    requests: RequestCounts


class StateDescription(ResponseBody):
    """An output of the graph that is the input of the next step of a sequence. `shape`: -1 is the axis of the rows."""

    input: str
    output: str
    dtype: str
    shape: list[int]
    batch_axis: int | None = Field(description="Axis of the rows; null: the state has one size for any rows.")


class SequencesDescription(ResponseBody):
    """The states and sequences of a model: those of the key's tenant, or for an operator all."""

    states: list[StateDescription]
    count: int = Field(description="Sequences that have begun and not ended.")
    bytes: int = Field(description="Memory of their states.")
    max_bytes: int = Field(description="Limit of the memory of the states of all tenants.")
    idle_timeout_s: float = Field(description="A sequence without a step for as long is ended.")


class DownloadProgress(ResponseBody):
    """A download that runs. Bytes of an earlier download on the disk count as received."""

    received_bytes: int
    total_bytes: int = Field(description="0 while the source is being listed, or the download waits for others.")


class VersionDetail(ResponseBody):
    """One version of a model."""

    state: str
    reason: str | None
    memory_bytes: int | None
    device: str | None
    providers: list[str]
    max_tokens: int | None = Field(
        description="Maximum tokens of a text; for a model that generates, of prompt and generated text together."
    )
    labels: list[str] | None
    loads: int
    load_seconds: float
    warm_up: str | None = Field(description="done, or the reason why this version was not run at warm-up.")
    batching: str = Field(description="on, or the reason why tensor requests are not batched.")
    padding: str | None = Field(
        description="on, or the reason why only texts or tensors of one length are batched; null for tensors without a "
        "sequence_axis."
    )
    sequences: SequencesDescription | None = Field(
        description="States and sequences; null for a model without a state, and while it is not loaded."
    )
    max_batch_size: int
    instances: int
    queue_depth: int
    path: str | None = Field(
        description="Path or address, as in the entry of the model. Null: a path, and the key lacks the scope `manage`."
    )
    revision: str | None = Field(description="Commit of the files from a hub; null for other files.")
    download: DownloadProgress | None = Field(description="The download for a load; null while none runs.")


class AdapterDescription(ResponseBody):
    """A LoRA adapter of a model. Requests name it as `model:name`. Numbers are null while it is not loaded."""

    name: str
    rank: int | None = Field(description="The largest rank of a module.")
    memory_bytes: int | None = Field(description="Bytes of the weights; part of the memory of the model.")


class TrafficShare(ResponseBody):
    """A version that gets a share of the requests without a version."""

    version: str
    percent: float


class ModelDetail(ModelDescription):
    """A registered model with its versions. `active_version` answers requests without a version."""

    active_version: str
    previous_version: str | None = Field(description="The version that a rollback activates.")
    canary: TrafficShare | None
    shadow: TrafficShare | None
    adapters: list[AdapterDescription]
    version_details: dict[str, VersionDetail]


class ListedModel(ResponseBody):
    """A model as Infinity lists it. `capabilities`: its task, `rerank` for a cross-encoder; empty while not loaded.

    `stats`: empty; the counts are in `models`.
    """

    id: str
    object: Literal["model"]
    backend: str
    capabilities: list[str]
    stats: dict[str, int]


class ModelList(ResponseBody):
    """The registered models that the key may use. `object` and `data`: as Infinity has them."""

    models: list[ModelDescription]
    object: Literal["list"]
    data: list[ListedModel]


class Deleted(ResponseBody):
    """The name of the deleted model."""

    deleted: str
