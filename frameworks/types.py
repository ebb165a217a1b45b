"""Define the data types of requests and models: specs, batches, answers and timings.

A `Value` is a numpy array for a tensor, a list of values for an ONNX sequence, a dict for an ONNX map, and None for
an absent optional. Two dtypes have no numpy type. A `bfloat16` tensor is a float32 array whose numbers are exact
bfloat16 numbers. A `string` tensor is an object array of str.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from frameworks.generation.speech.spec import SpeechSpec
from frameworks.generation.types import Conversation, GenerationSpec, PromptEnding, VisionSpec
from frameworks.images.spec import ImageSpec
from frameworks.tasks.types import TaskAnswer, TaskItem, TaskSpec

Array = np.ndarray[Any, np.dtype[Any]]
Value = Array | list[Any] | dict[Any, Any] | None
Task = str
"""`tensor`, `embed`, `classify`, `generate`, or the name of another task in transformers."""
Truncation = bool | Literal["left", "right"]
"""Whether a text is cut at the model's limit, and on which side. True: on the side that the model's files name."""

Vectors = Literal["dense", "sparse", "multi"]
"""The kind of an embedding model's answer."""

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "string": np.dtype(object),
}


class TensorType(Struct, frozen=True, tag="tensor"):
    """A tensor. `shape`: -1 is a free dimension; None where the model declares no rank."""

    dtype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.dtype


class SequenceType(Struct, frozen=True, tag="sequence"):
    """An ONNX sequence: a list of values of one type."""

    element: "ValueType"

    def __str__(self) -> str:
        return f"sequence({self.element})"


class MapType(Struct, frozen=True, tag="map"):
    """An ONNX map from `key` (`string` or `int64`) to values of one type."""

    key: str
    value: "ValueType"

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


class OptionalType(Struct, frozen=True, tag="optional"):
    """An ONNX optional: a value of the inner type, or None."""

    inner: "ValueType"

    def __str__(self) -> str:
        return f"optional({self.inner})"


ValueType = TensorType | SequenceType | MapType | OptionalType


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """One input or output of a model. `required` is False for optional inputs and those with a default in the graph."""

    name: str
    type: ValueType
    required: bool = True

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The declared shape (-1 for a free dimension) of a tensor; None for other types."""
        inner = self.type.inner if isinstance(self.type, OptionalType) else self.type
        return inner.shape if isinstance(inner, TensorType) else None


@dataclass(frozen=True, slots=True)
class TextSpec:
    """How a text model reads texts. `max_tokens`: per text, with special tokens. `normalize`: the default of requests.

    `embedding_size`: dimensions of an embedding; None where the files do not define it. `shorter_sizes`: dimensions to
    which embeddings may be truncated (Matryoshka), ascending; empty for other models. `pooling`: how an embedding is
    computed from the hidden states of its tokens: `mean`, `cls`, `max`, `lasttoken`, or `pooler` for BERT's own.
    `prompts`: by name, those that requests may put before their texts. `scores_are_logits`: of pairs, with one label;
    else a sigmoid is applied. `is_regression`: the values of the labels are answered as the model computes them.
    `unpadded_because`: why only texts of one length share a batch; None where others do. `vectors`: of an embedding
    model. `sparse`: a weight for each token of the vocabulary; `multi`: a vector for each token of the text.
    `has_sides`: queries and documents have encoders of their own. `other_vectors`: kinds that requests may ask for
    besides `vectors`, of the same run. `pads`: texts of a run are padded to the longest of them. `packs`: a run has no
    padding, and costs what its tokens cost. `are_queries`: all texts are read as queries, as the documents of the model
    are images.
    """

    max_tokens: int
    normalize: bool = True
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    embedding_size: int | None = None
    shorter_sizes: tuple[int, ...] = ()
    pooling: str = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    scores_are_logits: bool = False
    is_regression: bool = False
    unpadded_because: str | None = None
    vectors: Vectors = "dense"
    has_sides: bool = False
    other_vectors: tuple[Vectors, ...] = ()
    pads: bool = True
    packs: bool = False
    are_queries: bool = False

    @property
    def kinds(self) -> tuple[Vectors, ...]:
        """All kinds of vectors of an embedding model, the default first."""
        return (self.vectors, *self.other_vectors)


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """The sequence axis of a model's tensors.

    `pad_values`: the padding value of each input that has the axis, including the mask. `mask`: the input that is 1 on
    real elements and 0 on padding, added by the server where absent. `output_axes`: for each output the axes
    with the length of the sequence. `unpadded_because`: why only rows of one length share a batch; None where rows of
    different lengths do.
    """

    axis: int
    pad_values: Mapping[str, int | float] = field(hash=False)
    mask: ValueSpec | None = None
    output_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    unpadded_because: str | None = "it was not warmed up"


@dataclass(frozen=True, slots=True)
class StatePair:
    """An output of a graph that is the input of the next step of a sequence.

    `shape`: of the input at the first step, -1 at `batch_axis`, the axis of the rows. `batch_axis` None: the state has
    one size for any number of rows.
    """

    input: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    batch_axis: int | None


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of a model, which requests of a sequence share. `max_bytes`: of all sequences. `idle_s`: a sequence
    without a step for as long is ended. `rows_input`: the input that has the rows of a step at `rows_axis`; None: the
    first one with a dimension.
    """

    pairs: tuple[StatePair, ...]
    max_bytes: int
    idle_s: float
    rows_input: str | None = None
    rows_axis: int = 0

    def rows_of(self, inputs: Mapping[str, "Value"]) -> int:
        """Return the number of rows of a step; 1 where its inputs do not show it."""
        given = inputs.values() if self.rows_input is None else [inputs.get(self.rows_input)]
        for value in given:
            if isinstance(value, np.ndarray) and value.ndim > self.rows_axis:
                return int(value.shape[self.rows_axis])
        return 1


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """One product of a quantized model's largest layer, `original` or int8.

    `weights`: the range that they are rounded to. `error`: root mean square, relative to the product.
    `milliseconds`: by number of rows; fewer numbers for a product that is far slower than others.
    """

    kernel: str
    weights: str
    error: float
    milliseconds: dict[str, float] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ProductTrial:
    """The kernel of the layers of one shape, and the measured ones. `layers`: their number. `weights`: the range that
    they are rounded to, empty without quantization. `trials`: empty where
    nothing was measured, for one kernel alone or a small shape.
    """

    outputs: int
    inputs: int
    layers: int
    kernel: str
    weights: str = ""
    trials: tuple[KernelTrial, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """A quantized model compared with its original on warm-up inputs.

    `cosine_min` and `cosine_mean`: over the rows of the outputs. `speedup`: median time of the original divided by that
    of the quantized model. `bytes_before`, `bytes_after`: size of the weights. `original_ms`, `quantized_ms`: those
    times, of all warm-up inputs. `kernel`: the int8 product that is used, of the measured `kernels`. `weights`: the
    range that they are rounded to, of frameworks.quantization.ranges. `perplexity`, `perplexity_original`: of a
    language model on a text that it was not trained on.
    """

    scheme: str
    cosine_min: float
    cosine_mean: float
    speedup: float
    bytes_before: int
    bytes_after: int
    original_ms: float = 0.0
    quantized_ms: float = 0.0
    kernel: str = ""
    weights: str = ""
    kernels: tuple[KernelTrial, ...] = ()
    perplexity: float | None = None
    perplexity_original: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Describe a loaded model: shown by /models, and used to decode requests.

    `memory_bytes`: the weights in memory. `providers`: of ONNX Runtime, in order of preference. `batched_inputs`:
    requests of these tensors may share a batch; where it is empty, `unbatched_because` has the reason. `equal_inputs`:
    of these, scalars without rows, the requests of a batch have equal ones.
    `unwarmed_because`: why the graph was not run at warm-up; None if it was. `learns_batching`: the graph refused
    synthetic rows, so the rows of requests are compared until they decide; short runs are off until then.
    `runs_by_shape`: the time of a run depends on the shapes of its inputs, not on their values. `sequence`: None
    without a declared sequence axis.
    `quantization`: None for a model that is not quantized. `quantized_graph`: path of the ONNX graph that runs in place
    of that of the model. `generation`: only of a generating model. `products`: of a generating model on a CPU, the
    kernels of its linear layers; of a graph whose entry has `kernels`, those of its encoder. `awaits_kernels`: compiled
    ones may replace those of the model, when they have been compiled. `is_composite`: other models of the server
    compute it. `pipeline`: of a model that answers as a pipeline of transformers does. `messages`: of a model that
    embeds conversations, the bounds of their images. `graphs`: which runs, or decode steps, are graphs of the device,
    or why none is; None on a device without graphs. `state`: its pairs are in neither `inputs` nor `outputs`; None for
    a model without a state. `speech`: of a model that generates texts of sounds, in the steps of a generating one.
    """

    framework: str
    task: Task
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    device: str
    dtype: str
    memory_bytes: int
    text: TextSpec | None = None
    image: ImageSpec | None = None
    providers: tuple[str, ...] = ()
    batched_inputs: frozenset[str] = frozenset()
    equal_inputs: frozenset[str] = frozenset()
    unbatched_because: str | None = None
    unwarmed_because: str | None = None
    learns_batching: bool = False
    runs_by_shape: bool = False
    sequence: SequenceSpec | None = None
    quantization: QuantizationReport | None = None
    quantized_graph: str | None = None
    generation: GenerationSpec | None = None
    products: tuple[ProductTrial, ...] = ()
    awaits_kernels: bool = False
    is_composite: bool = False
    pipeline: TaskSpec | None = None
    graphs: str | None = None
    messages: VisionSpec | None = None
    state: StateSpec | None = None
    speech: SpeechSpec | None = None
    inputs_by_name: dict[str, ValueSpec] = field(init=False, compare=False, repr=False)
    outputs_by_name: dict[str, ValueSpec] = field(init=False, compare=False, repr=False)
    first_output: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """The name of the first output, alone."""
    sole_input: ValueSpec | None = field(init=False, compare=False, repr=False)
    """The only required input; None where there are several, or none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs_by_name", {spec.name: spec for spec in self.inputs})
        object.__setattr__(self, "outputs_by_name", {spec.name: spec for spec in self.outputs})
        object.__setattr__(self, "first_output", tuple(spec.name for spec in self.outputs[:1]))
        required = [spec for spec in self.inputs if spec.required]
        object.__setattr__(self, "sole_input", required[0] if len(required) == 1 else None)

    @property
    def state_bytes(self) -> int:
        """The memory that the states of all sequences may take."""
        return 0 if self.state is None else self.state.max_bytes

    @property
    def with_states(self) -> "ModelSpec":
        """The spec with the states as further inputs and outputs, whose first axis is that of the rows."""
        if self.state is None:
            return self
        states = [(pair, TensorType(pair.dtype, _rows_first(pair))) for pair in self.state.pairs]
        return replace(
            self,
            inputs=(*self.inputs, *(ValueSpec(pair.input, kind) for pair, kind in states)),
            outputs=(*self.outputs, *(ValueSpec(pair.output, kind) for pair, kind in states)),
        )

    @property
    def decoder(self) -> GenerationSpec | None:
        """How the model generates tokens, of texts or of speech; None for a model that runs in batches."""
        return self.generation if self.speech is None else self.speech.generation

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of a text, or of prompt and generated text together; None for a tensor model."""
        if self.generation is not None:
            return self.generation.max_context_tokens
        return self.text.max_tokens if self.text is not None else None

    @property
    def vision(self) -> VisionSpec | None:
        """The bounds of the images of a conversation; None for a model that reads no conversation with images."""
        return self.messages if self.generation is None else self.generation.vision

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a model that classifies texts or images, by index; empty for other models."""
        if self.pipeline is not None:
            return self.pipeline.labels
        if self.text is not None:
            return self.text.labels
        return self.image.labels if self.image is not None else ()

    @property
    def embedding_size(self) -> int | None:
        """Dimensions of an embedding of a text or an image; None for other tasks, and where it is not known."""
        if self.text is not None:
            return self.text.embedding_size
        return self.image.embedding_size if self.image is not None else None


def _rows_first(pair: StatePair) -> tuple[int, ...]:
    if pair.batch_axis is None:
        return pair.shape
    return (-1, *pair.shape[: pair.batch_axis], *pair.shape[pair.batch_axis + 1 :])


SequenceId = int | str


class SequenceStep(NamedTuple):
    """The place of a request in a sequence: its id, whether it is the first step, and whether it is the last."""

    id: SequenceId
    start: bool = False
    end: bool = False


class TensorBatch(NamedTuple):
    """Named tensors for one run of a model. `output_names`: None for every output. `sequence`: for a model with a
    state.
    """

    inputs: dict[str, Value]
    output_names: tuple[str, ...] | None = None
    sequence: SequenceStep | None = None

    @property
    def rows(self) -> int:
        """The first dimension of the first tensor; 1 without a tensor."""
        first = next((value for value in self.inputs.values() if isinstance(value, np.ndarray)), None)
        return int(first.shape[0]) if first is not None and first.ndim else 1


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokenised texts for one run of a text model, with special tokens and without padding.

    `token_type_ids`: for pairs of texts 0 or 1 for each token, the text that it belongs to. None: 0 for all.
    `attended`: how many tokens of each text the others attend to, the first ones; None: all. `unpooled`: how many
    tokens of each text the pooling leaves out, the first ones; None: none. `are_queries`: of texts for a model with
    sides; None: all are documents. `kinds`: of the vectors of each text, for a model of several kinds; None: the rows
    are its dense vectors.
    """

    token_ids: list[list[int]]
    token_type_ids: list[list[int]] | None = None
    attended: list[int] | None = None
    unpooled: list[int] | None = None
    are_queries: list[bool] | None = None
    kinds: list[tuple[Vectors, ...]] | None = None

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def part(self, at: int, rows: int) -> "TokenBatch":
        """Return `rows` of its texts from position `at`."""
        return self.map_rows(lambda each: each[at : at + rows])

    def map_rows(self, pick: Callable[[list[Any]], list[Any]]) -> "TokenBatch":
        """Return the texts that `pick` takes of each list of the batch, which has an element for each text."""
        given: list[Any] = [getattr(self, name) for name in self.__slots__]
        picked: list[Any] = [None if each is None else pick(each) for each in given]
        return TokenBatch(*picked)


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Prepared inputs for one run of a model with a TaskSpec, a row each."""

    items: list[TaskItem]

    @property
    def rows(self) -> int:
        return len(self.items)

    def part(self, at: int, rows: int) -> "TaskBatch":
        """Return `rows` of its items from position `at`."""
        return TaskBatch(self.items[at : at + rows])


SentBatch = TensorBatch | TokenBatch
"""Rows that may be sent to another process."""
Batch = SentBatch | TaskBatch
TASK_OUTPUT = "task"
"""The output of a TaskBatch: an object array [rows] of what the pipeline computes of each item."""
TEXT_OUTPUT = "text"
"""The output of a text model: float32 [rows, embedding size], or raw logits [rows, labels].

Of a model of late interaction an object array [rows] of float32 [tokens, size]. Where a TokenBatch has `kinds`, an
object array [rows] of dicts: kind → float32 [size], (int32 indices, float32 values), or float32 [tokens, size].
"""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Texts for an embed or classify model.

    `normalize`: None for the default of the model's files. `dimensions`: truncate embeddings to this size, one of
    `shorter_sizes`; None: whole embeddings. `token_ids`: the texts as token ids of this model, each with at least one;
    `texts` is then empty. `raw_scores`: the logits of labels instead of their probabilities.
    `prompt`: what is put before each text; None: the prompt of the model's files. `are_queries`: a model of late
    interaction, or with sides, reads queries, not documents. `vectors`: the kinds that the response of the protocol
    can hold. `min_value`: smallest element that a sparse vector keeps. `kinds`: those that the request asks for; empty:
    the model's default.
    """

    texts: list[str]
    normalize: bool | None = None
    truncate: Truncation = True
    top_k: int | None = None
    dimensions: int | None = None
    token_ids: list[list[int]] | None = None
    raw_scores: bool = False
    prompt: str | None = None
    are_queries: bool = False
    vectors: tuple[Vectors, ...] = ("dense",)
    min_value: float = 0.0
    kinds: tuple[Vectors, ...] = ()


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Pairs of texts; the model scores how well the second text matches the first.

    `raw_scores`: the logits of a classification model instead of probabilities. `with_labels`: classify each pair; the
    answer is a ClassifyAnswer.
    """

    pairs: list[tuple[str, str]]
    truncate: Truncation = True
    raw_scores: bool = False
    with_labels: bool = False


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A conversation to embed as a whole. `ending`: where its prompt ends; None: as the model's files say.

    `normalize`, `dimensions`: as of TextRequest.
    """

    conversation: Conversation
    ending: PromptEnding | None = None
    normalize: bool | None = None
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class ImagePairRequest:
    """A text and images; the model scores how well each image matches the text. `images`: files."""

    query: str
    images: list[bytes]
    truncate: Truncation = True


@dataclass(frozen=True, slots=True)
class EmbedAnswer:
    """`embeddings`: float32 [texts, embedding size], in the order of the request. `tokens`: number of tokens read."""

    embeddings: Array
    tokens: int


@dataclass(frozen=True, slots=True)
class ClassifyAnswer:
    """For each text its (label, score) pairs, highest score first. `tokens`: number of tokens read.

    `classes`: the index of each pair's label, for a model with equal labels, such as "crane" of ImageNet; else None.
    """

    predictions: list[list[tuple[str, float]]]
    tokens: int = 0
    classes: list[list[int]] | None = None


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """A score for each pair, in the order of the request. `tokens`: number of tokens read.

    The score of a cross-encoder is from 0 to 1, or a logit; the cosine of two embeddings is from -1 to 1.
    MaxSim, of the vectors of tokens, is at most the number of the query's tokens.
    """

    scores: list[float]
    tokens: int


@dataclass(frozen=True, slots=True)
class SparseAnswer:
    """A sparse vector for each text. `indices`: int32 [elements], ascending; `values`: float32 [elements], both for
    each text in order. `tokens`: number of tokens read.
    """

    indices: list[Array]
    values: list[Array]
    tokens: int


@dataclass(frozen=True, slots=True)
class MultiVectorAnswer:
    """Vectors of the tokens of each text: float32 [tokens, embedding size] each. `tokens`: number of tokens read."""

    vectors: list[Array]
    tokens: int


@dataclass(frozen=True, slots=True)
class CombinedAnswer:
    """Vectors of several kinds for the same texts; None for a kind that was not asked for."""

    dense: EmbedAnswer | None = None
    sparse: SparseAnswer | None = None
    multi: MultiVectorAnswer | None = None

    @property
    def answers(self) -> list[EmbedAnswer | SparseAnswer | MultiVectorAnswer]:
        """The answers of the kinds that were asked for."""
        return [each for each in (self.dense, self.sparse, self.multi) if each is not None]


VectorAnswer = EmbedAnswer | SparseAnswer | MultiVectorAnswer | CombinedAnswer
Answer = dict[str, Value] | VectorAnswer | ClassifyAnswer | ScoreAnswer | TaskAnswer
"""The answer to tensors is a dict: output name → value."""

DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
