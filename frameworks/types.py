"""The vocabulary: what a model takes and gives, a request, a batch, an answer and its timings.

A `Value` is what travels: a tensor is a numpy array, an ONNX sequence a list of values, an ONNX map a dict, an absent
optional None. Two dtypes have no numpy type of their own: a `bfloat16` tensor travels as float32 numbers (each exactly
a bfloat16), a `string` tensor as an object array of str.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from frameworks.generation.types import GenerationSpec

Array = np.ndarray[Any, np.dtype[Any]]
Value = Array | list[Any] | dict[Any, Any] | None
Task = Literal["tensor", "embed", "classify", "generate"]

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


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor. `shape` has -1 for a free dimension and is None where the model declares no rank."""

    dtype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class SequenceType:
    """An ONNX sequence: values of one type, in order."""

    element: "ValueType"

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True, slots=True)
class MapType:
    """An ONNX map from `key` (`string` or `int64`) to values of one type."""

    key: str
    value: "ValueType"

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """An ONNX optional: a value of the inner type, or nothing."""

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
        """The declared shape (-1 for a free dimension) of a tensor; None for what has none."""
        inner = self.type.inner if isinstance(self.type, OptionalType) else self.type
        return inner.shape if isinstance(inner, TensorType) else None


@dataclass(frozen=True, slots=True)
class TextSpec:
    """How a text model reads: `max_tokens` per text, special tokens included; whether it normalises; its labels.

    `embedding_size`: numbers in an embedding, None where its files do not say. `shorter_sizes`: to which embeddings may
    be cut and still compare, rising; empty for a model that was not trained for it.
    """

    max_tokens: int
    normalize: bool = True
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    embedding_size: int | None = None
    shorter_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """The axis of a model's tensors that is a sequence.

    `pad_values`: for each input that has the axis (the mask too) what fills it up behind the shorter rows of a batch.
    `mask`: the input that is 1 on what is real and 0 on padding; made by the server where a caller leaves it out.
    `output_axes`: per output the axes that are as long as the sequence. `unpadded_because`: why only rows of one length
    share a batch; None where rows of different lengths do.
    """

    axis: int
    pad_values: Mapping[str, float] = field(hash=False)
    mask: ValueSpec | None = None
    output_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    unpadded_because: str | None = "it was not warmed up"


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What quantising a model gave, measured against the original on the warm-up inputs of its kind.

    `cosine_min` and `cosine_mean` are over the rows of those inputs; `speedup` is the median time of the original by
    that of the quantised model; `bytes_before` and `bytes_after` are those of the weights.
    """

    scheme: str
    cosine_min: float
    cosine_mean: float
    speedup: float
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a loaded model is: shown by /models, and what a request is decoded by.

    `memory_bytes` counts the weights as they are held. `providers` are ONNX Runtime's, in order of preference.
    `batched_inputs`: requests of these tensors may share a batch; where it is empty, `unbatched_because` says why.
    `runs_by_shape`: how long a run takes is settled by the shapes of what it is given, not by the values.
    `sequence`: None for tensors that have no sequence axis, or whose axis nobody declared.
    `quantization`: None for a model that is served as its files are. `generation`: of a model that generates text.
    """

    framework: str
    task: Task
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    device: str
    dtype: str
    memory_bytes: int
    text: TextSpec | None = None
    providers: tuple[str, ...] = ()
    batched_inputs: frozenset[str] = frozenset()
    unbatched_because: str | None = None
    runs_by_shape: bool = False
    sequence: SequenceSpec | None = None
    quantization: QuantizationReport | None = None
    generation: GenerationSpec | None = None
    inputs_by_name: dict[str, ValueSpec] = field(init=False, compare=False, repr=False)
    outputs_by_name: dict[str, ValueSpec] = field(init=False, compare=False, repr=False)
    first_output: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """Its name, alone."""
    sole_input: ValueSpec | None = field(init=False, compare=False, repr=False)
    """The one required input; None where there are several, or none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs_by_name", {spec.name: spec for spec in self.inputs})
        object.__setattr__(self, "outputs_by_name", {spec.name: spec for spec in self.outputs})
        object.__setattr__(self, "first_output", tuple(spec.name for spec in self.outputs[:1]))
        required = [spec for spec in self.inputs if spec.required]
        object.__setattr__(self, "sole_input", required[0] if len(required) == 1 else None)

    @property
    def max_tokens(self) -> int | None:
        """How many tokens it reads at most, or reads and writes; None for a model that knows none."""
        if self.generation is not None:
            return self.generation.max_context_tokens
        return self.text.max_tokens if self.text is not None else None


class TensorBatch(NamedTuple):
    """Named tensors for one run of a model. `output_names` None asks for every output."""

    inputs: dict[str, Value]
    output_names: tuple[str, ...] | None = None

    @property
    def rows(self) -> int:
        """The first dimension of the first tensor; 1 where there is none."""
        first = next((value for value in self.inputs.values() if isinstance(value, np.ndarray)), None)
        return int(first.shape[0]) if first is not None and first.ndim else 1


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokenised texts for one run of a text model, special tokens included, not yet padded.

    `token_type_ids`: of pairs of texts, for each token 0 or 1: to which of the two it belongs. None: 0 for all.
    """

    token_ids: list[list[int]]
    token_type_ids: list[list[int]] | None = None

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def part(self, at: int, rows: int) -> "TokenBatch":
        """So many of its texts, from one on."""
        types = self.token_type_ids
        return TokenBatch(self.token_ids[at : at + rows], None if types is None else types[at : at + rows])


Batch = TensorBatch | TokenBatch
TEXT_OUTPUT = "text"
"""The name under which a text model gives its rows: float32 [rows, embedding size] or [rows, labels] of raw logits."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Texts for an embed or classify model. `normalize` None means as the model's own files say. `dimensions`: to which
    embeddings are cut, one of the model's `shorter_sizes`; None: they are whole.
    """

    texts: list[str]
    normalize: bool | None = None
    truncate: bool = True
    top_k: int | None = None
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Pairs of texts, each to be scored by how well the second suits the first."""

    pairs: list[tuple[str, str]]
    truncate: bool = True


@dataclass(slots=True)
class Timings:
    """Where a request's time went, in seconds. Filled on the way, read by headers, log and metrics.

    `started_s`: when its first byte was there (time.perf_counter). `cache_hit`: of a model whose answers are kept,
    whether this one was known, or asked for by a neighbour; None of any other.
    """

    decode_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)
    cache_hit: bool | None = None


@dataclass(frozen=True, slots=True)
class EmbedAnswer:
    """`embeddings`: float32 [texts, embedding size], in the order of the question; `tokens` read in all."""

    embeddings: Array
    tokens: int


@dataclass(frozen=True, slots=True)
class ClassifyAnswer:
    """Per text its (label, score) pairs by falling score."""

    predictions: list[list[tuple[str, float]]]


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """A score for each pair, in the order of the question: a cross-encoder's from 0 to 1, the cosine of two embeddings
    from -1 to 1. `tokens` read in all.
    """

    scores: list[float]
    tokens: int


Answer = dict[str, Value] | EmbedAnswer | ClassifyAnswer | ScoreAnswer
"""To tensors: output name → value."""

DEFAULT_PRIORITY = 5
LAST_PRIORITY = 9
