"""What a model takes and gives in the protocol's words: questions are held against it, and metadata tell it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.protocols.open_inference.datatypes import BINARY_ONLY, DATATYPES
from app.protocols.open_inference.infer_types import InferRequest, RequestedOutput
from frameworks.types import ModelSpec, OptionalType, TensorBatch, TensorType, ValueSpec

TEXT_INPUT = "text"
"""Of embed and classify models; those that generate have PROMPT_INPUT."""
EMBEDDINGS_OUTPUT = "embeddings"
SCORES_OUTPUT = "scores"

PROMPT_INPUT = "text_input"
STREAM_INPUT = "stream"
OPTIONS_INPUT = "sampling_parameters"
GENERATED_OUTPUT = "text_output"


class TensorSignature(NamedTuple):
    """One input or output. `shape` has -1 for a free dimension, and is None where the model declares no rank: then any
    shape may come. `required` False: an input that may be left out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """By name, in the model's order. `reads_texts`: inputs may come in any shape, their strings are read one by one.

    ONNX sequences, maps and optionals cannot be carried, and are not among them: `untold` has their names and types,
    `refusal` says why no request can be answered where one of them is needed.
    """

    inputs: dict[str, TensorSignature]
    outputs: dict[str, TensorSignature]
    reads_texts: bool = False
    untold: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    output_names: tuple[str, ...] = field(init=False)
    wanted: tuple[RequestedOutput, ...] = field(init=False)
    """All outputs, where a request says nothing of them."""
    binary_only: frozenset[str] = field(init=False)
    """Outputs that have no form in JSON."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_names", tuple(self.outputs))
        object.__setattr__(self, "wanted", tuple(RequestedOutput(name) for name in self.outputs))
        halves = [output.name for output in self.outputs.values() if output.datatype in BINARY_ONLY]
        object.__setattr__(self, "binary_only", frozenset(halves))


_GENERATE = (
    (
        TensorSignature(PROMPT_INPUT, "BYTES", (1,)),
        TensorSignature(STREAM_INPUT, "BOOL", (1,), required=False),
        TensorSignature(OPTIONS_INPUT, "BYTES", (1,), required=False),
    ),
    TensorSignature(GENERATED_OUTPUT, "BYTES", (-1,)),
)
OTHERWISE = "ask POST /infer, which writes it in JSON"

# By the identity of the spec, which is made once for each load: to hash all of it takes longer than to read a request.
_signatures: dict[tuple[int, bool], tuple[ModelSpec, Signature]] = {}
_MOST_SIGNATURES = 256


def signature_for(spec: ModelSpec, of_graph: bool = False) -> Signature:
    """The tensors of a model. Any thread may call it.

    `of_graph`: those of an ONNX text model's own graph (`input_ids`, …), which may be sent in the place of texts.
    """
    known = _signatures.get((id(spec), of_graph))
    if known is not None and known[0] is spec:
        return known[1]
    signature = _signature_of(spec, of_graph)
    if len(_signatures) >= _MOST_SIGNATURES:
        _signatures.clear()
    _signatures[id(spec), of_graph] = spec, signature
    return signature


def signature_of_request(request: InferRequest) -> Signature:
    """What a request was held against."""
    spec = request.spec
    return signature_for(spec, of_graph=spec.text is not None and type(request.request) is TensorBatch)


def supports_batching(spec: ModelSpec) -> bool:
    """Whether the first dimension of the model's tensors is rows that may share a run with those of others."""
    return spec.text is not None or bool(spec.batched_inputs)


def _signature_of(spec: ModelSpec, of_graph: bool) -> Signature:
    if spec.generation is not None:
        return _of_texts(*_GENERATE)
    if spec.text is not None and not of_graph:
        if spec.task == "classify":
            output = TensorSignature(SCORES_OUTPUT, "FP32", (-1, len(spec.text.labels)))
        else:
            output = TensorSignature(EMBEDDINGS_OUTPUT, "FP32", (-1, spec.text.embedding_size or -1))
        return _of_texts((TensorSignature(TEXT_INPUT, "BYTES", (-1,)),), output)
    inputs = {value.name: _tensor(value, kind) for value in spec.inputs if (kind := _tensor_type(value))}
    outputs = {value.name: _tensor(value, value.type) for value in spec.outputs if isinstance(value.type, TensorType)}
    untold = {v.name: str(v.type) for v in spec.outputs if v.name not in outputs}
    refusal = None if outputs else f"none of the model's outputs is a tensor; {OTHERWISE}"
    for value in spec.inputs:
        if value.name not in inputs:
            untold[value.name] = str(value.type)
            if value.required:
                refusal = f'the model wants "{value.name}", {explain_unsupported_type(str(value.type))}'
    return Signature(inputs, outputs, False, untold, refusal)


def explain_unsupported_type(kind: str) -> str:
    """What is wrong with a value of this type, and the remedy."""
    return f"a {kind}, which this protocol cannot carry; {OTHERWISE}"


def _of_texts(inputs: tuple[TensorSignature, ...], output: TensorSignature) -> Signature:
    return Signature({tensor.name: tensor for tensor in inputs}, {output.name: output}, True)


def _tensor_type(value: ValueSpec) -> TensorType | None:
    """Of an optional tensor as well: it may come or be left out."""
    inner = value.type.inner if isinstance(value.type, OptionalType) else value.type
    return inner if isinstance(inner, TensorType) else None


def _tensor(value: ValueSpec, kind: TensorType) -> TensorSignature:
    return TensorSignature(value.name, DATATYPES[kind.dtype], kind.shape, value.required)
