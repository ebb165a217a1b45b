"""Describe the inputs and outputs of a model in the protocol's terms, for request checks and for metadata."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.protocols.open_inference.content_tensors import IMAGE_INPUT, PREDICTIONS_OUTPUT, names_of_inputs
from app.protocols.open_inference.datatypes import BINARY_ONLY, DATATYPES
from app.protocols.open_inference.infer_types import InferRequest, RequestedOutput
from frameworks.types import ModelSpec, OptionalType, TensorBatch, TensorType, ValueSpec

TEXT_INPUT = "text"
"""The input of embed and classify models; generation models have PROMPT_INPUT."""
INPUT_TEXT = "input_text"
"""Another name of TEXT_INPUT, which LiteLLM sends."""
EMBEDDINGS_OUTPUT = "embeddings"
SCORES_OUTPUT = "scores"

PROMPT_INPUT = "text_input"
OPTIONS_INPUT = "sampling_parameters"
GENERATED_OUTPUT = "text_output"
INDEX_OUTPUT = "sequence_index"


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

    `reads_texts`: inputs are strings in any shape, read one by one, or files of images. The protocol has no form for
    ONNX sequences, maps and optionals: `unsupported_types` holds their names and types. `unsupported`: why the protocol
    cannot serve the model at all; None where it can. `other_names`: of inputs, with the name of each in `inputs`.
    """

    inputs: dict[str, TensorSignature]
    outputs: dict[str, TensorSignature]
    reads_texts: bool = False
    unsupported_types: Mapping[str, str] = field(default_factory=dict)
    unsupported: str | None = None
    other_names: Mapping[str, str] = field(default_factory=dict)
    output_names: tuple[str, ...] = field(init=False)
    all_outputs: tuple[RequestedOutput, ...] = field(init=False)
    """The outputs of a request that names none. A model that generates text returns fewer."""
    binary_only: frozenset[str] = field(init=False)
    """Outputs that JSON cannot represent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_names", tuple(self.outputs))
        object.__setattr__(self, "all_outputs", tuple(RequestedOutput(name) for name in self.outputs))
        halves = [output.name for output in self.outputs.values() if output.datatype in BINARY_ONLY]
        object.__setattr__(self, "binary_only", frozenset(halves))


def _options(datatype: str, *names: str) -> tuple[TensorSignature, ...]:
    return tuple(TensorSignature(name, datatype, (1,), required=False) for name in names)


# Of Triton's vLLM backend. `generate_options` knows more options that may be inputs.
_GENERATE_INPUTS = (
    TensorSignature(PROMPT_INPUT, "BYTES", (1,)),
    *_options("BOOL", "stream"),
    *_options("BYTES", OPTIONS_INPUT),
    *_options("BOOL", "exclude_input_in_output", "return_finish_reason", "return_cumulative_logprob"),
    *_options("BOOL", "return_logprobs", "return_num_input_tokens", "return_num_output_tokens"),
)
# Those of Triton's vLLM backend, and then TensorRT-LLM's.
_GENERATE_OUTPUTS = (
    TensorSignature(GENERATED_OUTPUT, "BYTES", (-1,)),
    TensorSignature("finish_reason", "BYTES", (-1,)),
    TensorSignature("cumulative_logprob", "FP32", (-1,)),
    TensorSignature("logprobs", "BYTES", (-1,)),
    TensorSignature("num_input_tokens", "UINT32", (1,)),
    TensorSignature("num_output_tokens", "UINT32", (1,)),
    TensorSignature("cum_log_probs", "FP32", (-1,)),
    TensorSignature("output_log_probs", "FP32", (-1, -1)),
    TensorSignature(INDEX_OUTPUT, "INT32", (-1, 1)),
)
USE_NATIVE_INFER = "send the request to POST /infer, which supports the type"

# The key is the identity of the spec, which is created once for each load: hashing it would take longer than a decode.
_signatures: dict[tuple[int, bool], tuple[ModelSpec, Signature]] = {}
_MAX_SIGNATURES = 256


def signature_for(spec: ModelSpec, of_graph: bool = False) -> Signature:
    """Return the signature of a model. Thread-safe.

    `of_graph`: that of an ONNX model's own graph (`input_ids`, …), which accepts tensors instead of texts or images.
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
    return signature_for(spec, of_graph=reads_content(spec) and type(request.request) is TensorBatch)


def reads_content(spec: ModelSpec) -> bool:
    """Whether the model reads texts or files, which the server turns into tensors."""
    return spec.text is not None or spec.image is not None or spec.pipeline is not None


def supports_batching(spec: ModelSpec) -> bool:
    """Whether the first dimension of the model's tensors holds rows that can share a batch with other requests."""
    return reads_content(spec) or bool(spec.batched_inputs)


def _signature_of(spec: ModelSpec, of_graph: bool) -> Signature:
    if spec.generation is not None:
        return Signature(_by_name(_GENERATE_INPUTS), _by_name(_GENERATE_OUTPUTS), True)
    if reads_content(spec) and not of_graph:
        return _signature_of_content(spec)
    return _signature_of_graph(spec)


def _signature_of_content(spec: ModelSpec) -> Signature:
    """Return the signature of a model that reads texts, images, or either of them, or has a task."""
    if spec.pipeline is not None:
        named = names_of_inputs(spec.pipeline).items()
        inputs = _by_name(TensorSignature(name, "BYTES", (-1,), required) for name, required in named)
        return Signature(inputs, _by_name([TensorSignature(PREDICTIONS_OUTPUT, "BYTES", (-1,))]), True)
    names = [TEXT_INPUT] * (spec.text is not None) + [IMAGE_INPUT] * (spec.image is not None)
    inputs = _by_name(TensorSignature(name, "BYTES", (-1,), required=len(names) == 1) for name in names)
    other_names = {INPUT_TEXT: TEXT_INPUT} if spec.text is not None else {}
    if spec.task == "tensor":
        graph = _signature_of_graph(spec)
        return Signature(inputs, graph.outputs, True, graph.unsupported_types, other_names=other_names)
    if spec.task == "classify":
        output = TensorSignature(SCORES_OUTPUT, "FP32", (-1, len(spec.labels)))
    else:
        output = TensorSignature(EMBEDDINGS_OUTPUT, "FP32", (-1, spec.embedding_size or -1))
    return Signature(inputs, _by_name([output]), True, other_names=other_names)


def _signature_of_graph(spec: ModelSpec) -> Signature:
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


def _by_name(tensors: Iterable[TensorSignature]) -> dict[str, TensorSignature]:
    return {tensor.name: tensor for tensor in tensors}


def _tensor_type(value: ValueSpec) -> TensorType | None:
    """Return the type of a tensor or optional tensor; None for every other value."""
    inner = value.type.inner if isinstance(value.type, OptionalType) else value.type
    return inner if isinstance(inner, TensorType) else None


def _tensor(value: ValueSpec, kind: TensorType) -> TensorSignature:
    return TensorSignature(value.name, DATATYPES[kind.dtype], kind.shape, value.required)
