"""Describe the inputs and outputs of a model in the protocol's terms, for request checks and for metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.protocols.open_inference.datatypes import BINARY_ONLY, DATATYPES
from app.protocols.open_inference.infer_types import InferRequest, RequestedOutput
from frameworks.types import ModelSpec, OptionalType, TensorBatch, TensorType, ValueSpec

TEXT_INPUT = "text"
"""The input of embed and classify models; generation models have PROMPT_INPUT."""
EMBEDDINGS_OUTPUT = "embeddings"
SCORES_OUTPUT = "scores"

PROMPT_INPUT = "text_input"
STREAM_INPUT = "stream"
OPTIONS_INPUT = "sampling_parameters"
GENERATED_OUTPUT = "text_output"


class TensorSignature(NamedTuple):
    """One input or output.

    `shape`: -1 is a free dimension; None: the model declares no rank and accepts every shape. `required` False: an
    input that may be left out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model by name, in the model's order.

    `reads_texts`: inputs are strings in any shape, read one by one. The protocol has no form for ONNX sequences, maps
    and optionals: `unsupported_types` holds their names and types. `unsupported`: why the protocol cannot serve the
    model at all; None where it can.
    """

    inputs: dict[str, TensorSignature]
    outputs: dict[str, TensorSignature]
    reads_texts: bool = False
    unsupported_types: Mapping[str, str] = field(default_factory=dict)
    unsupported: str | None = None
    output_names: tuple[str, ...] = field(init=False)
    all_outputs: tuple[RequestedOutput, ...] = field(init=False)
    """The outputs of a request that names none."""
    binary_only: frozenset[str] = field(init=False)
    """Outputs that JSON cannot represent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_names", tuple(self.outputs))
        object.__setattr__(self, "all_outputs", tuple(RequestedOutput(name) for name in self.outputs))
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
USE_NATIVE_INFER = "send the request to POST /infer, which supports the type"

# The key is the identity of the spec, which is created once for each load: hashing it would take longer than a decode.
_signatures: dict[tuple[int, bool], tuple[ModelSpec, Signature]] = {}
_MAX_SIGNATURES = 256


def signature_for(spec: ModelSpec, of_graph: bool = False) -> Signature:
    """Return the signature of a model. Thread-safe.

    `of_graph`: that of an ONNX text model's own graph (`input_ids`, …), which accepts tensors instead of texts.
    """
    known = _signatures.get((id(spec), of_graph))
    if known is not None and known[0] is spec:
        return known[1]
    signature = _signature_of(spec, of_graph)
    if len(_signatures) >= _MAX_SIGNATURES:
        _signatures.clear()
    _signatures[id(spec), of_graph] = spec, signature
    return signature


def signature_of_request(request: InferRequest) -> Signature:
    """Return the signature that a request was checked against."""
    spec = request.spec
    return signature_for(spec, of_graph=spec.text is not None and type(request.request) is TensorBatch)


def supports_batching(spec: ModelSpec) -> bool:
    """Whether the first dimension of the model's tensors holds rows that can share a batch with other requests."""
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
    unsupported_types = {v.name: str(v.type) for v in spec.outputs if v.name not in outputs}
    unsupported = None if outputs else f"the model has no output that is a tensor; {USE_NATIVE_INFER}"
    for value in spec.inputs:
        if value.name not in inputs:
            unsupported_types[value.name] = str(value.type)
            if value.required:
                unsupported = f'the model requires "{value.name}"; {explain_unsupported_type(str(value.type))}'
    return Signature(inputs, outputs, False, unsupported_types, unsupported)


def explain_unsupported_type(kind: str) -> str:
    """Say that the protocol has no form for values of this type, and the remedy."""
    return f"this protocol does not support {kind}; {USE_NATIVE_INFER}"


def _of_texts(inputs: tuple[TensorSignature, ...], output: TensorSignature) -> Signature:
    return Signature({tensor.name: tensor for tensor in inputs}, {output.name: output}, True)


def _tensor_type(value: ValueSpec) -> TensorType | None:
    """Return the type of a tensor or optional tensor; None for every other value."""
    inner = value.type.inner if isinstance(value.type, OptionalType) else value.type
    return inner if isinstance(inner, TensorType) else None


def _tensor(value: ValueSpec, kind: TensorType) -> TensorSignature:
    return TensorSignature(value.name, DATATYPES[kind.dtype], kind.shape, value.required)
