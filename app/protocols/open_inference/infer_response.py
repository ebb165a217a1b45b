"""Build the response to an infer request: its output tensors, for REST and gRPC, and the REST body."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from app.protocols.open_inference.content_tensors import predictions
from app.protocols.open_inference.datatypes import describe_binary_only, encode_tensor
from app.protocols.open_inference.generate_tensors import generated_tensors
from app.protocols.open_inference.infer_types import InferRequest, OutputTensor
from app.protocols.open_inference.signature import USE_NATIVE_INFER, signature_of_request, supports_batching
from app.protocols.shared.codec import AnswerContext, EncodedResponse, elements_of
from app.protocols.shared.json.output import to_json_value
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer
from frameworks.tasks.types import TaskAnswer
from frameworks.text.label_order import in_label_order
from frameworks.types import Array, ClassifyAnswer, EmbedAnswer, Value

HEADER_LENGTH = b"inference-header-content-length"
"""The HTTP header with the number of bytes of a body's JSON; the bytes of tensors follow the JSON."""


def check_output_formats(request: InferRequest) -> None:
    """Raises InvalidInput where JSON cannot represent an output and the caller does not request its bytes."""
    signature = signature_of_request(request)
    if not signature.binary_only:
        return
    for name, num_classes, binary in request.outputs:
        if not binary and not num_classes and name in signature.binary_only:
            raise InvalidInput(
                f"outputs.{name}",
                f'{describe_binary_only(signature.outputs[name].datatype)}; send "binary_data": true in its '
                'parameters, or "binary_data_output": true in the request\'s',
            )


def num_json_elements(request: InferRequest, answer: Any) -> int:
    """Count the numbers and strings that are written one by one; the bytes of binary numbers are only joined."""
    if isinstance(answer, dict):
        outputs = [(output, answer[output.name]) for output in request.outputs]
    elif isinstance(answer, EmbedAnswer):
        outputs = [(output, answer.embeddings) for output in request.outputs]
    else:
        return elements_of(answer)
    return sum(
        value.size for output, value in outputs if not output.binary or output.num_classes or value.dtype.hasobject
    )


def encode_response(request: InferRequest, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
    """Write the body of a 200: plain bytes for JSON alone, else an EncodedResponse."""
    raws: list[bytes | memoryview] = []
    head: dict[str, Any] = {"model_name": context.model, "model_version": context.version}
    if request.id:
        head["id"] = request.id
    head["outputs"] = [_describe_output(tensor, raws) for tensor in output_tensors(request, answer)]
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raws:
        return text
    headers = [(HEADER_LENGTH, str(len(text)).encode())]
    return EncodedResponse(b"".join([text, *raws]), b"application/octet-stream", headers)


def output_tensors(request: InferRequest, answer: Any) -> list[OutputTensor]:
    """Return the requested outputs in their order. Raises InvalidInput where the protocol has no form for a value."""
    if isinstance(answer, dict):
        return _tensors(request, answer)
    spec = request.spec
    labels: tuple[str, ...] = ()
    match answer:
        case EmbedAnswer():
            datatype, value = "FP32", answer.embeddings
        case ClassifyAnswer():
            labels = spec.labels
            datatype, value = "FP32", _scores(answer, labels)
        case TaskAnswer():
            datatype, value = "BYTES", predictions(answer)
        case GenerateAnswer():
            return generated_tensors(request, answer)
        case _:
            raise AssertionError(f"this protocol has no requests with answers of {type(answer)}")
    return [
        OutputTensor(name, "BYTES", _classify(value, num_classes, labels, by_row=True), binary)
        if num_classes
        else OutputTensor(name, datatype, value, binary)
        for name, num_classes, binary in request.outputs
    ]


def _describe_output(tensor: OutputTensor, raws: list[bytes | memoryview]) -> dict[str, Any]:
    """Return the JSON of an output; the bytes of a binary one are appended to `raws`. NaN and infinities are null."""
    name, datatype, value, binary = tensor
    described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": value.shape}
    if binary:
        raw = encode_tensor(value, datatype)
        described["parameters"] = {"binary_data_size": len(raw)}
        raws.append(raw)
    else:
        described["data"] = to_json_value(value.reshape(-1))
    return described


def _tensors(request: InferRequest, answer: Mapping[str, Value]) -> list[OutputTensor]:
    declared = signature_of_request(request).outputs
    tensors = []
    for name, num_classes, binary in request.outputs:
        value = answer[name]
        if not isinstance(value, np.ndarray):
            raise InvalidInput(f"outputs.{name}", f"the model returned another type than a tensor; {USE_NATIVE_INFER}")
        if num_classes:
            by_row = value.ndim > 0 and supports_batching(request.spec)
            tensors.append(OutputTensor(name, "BYTES", _classify(value, num_classes, (), by_row), binary))
        else:
            tensors.append(OutputTensor(name, declared[name].datatype, value, binary))
    return tensors


def _scores(answer: ClassifyAnswer, labels: tuple[str, ...]) -> Array:
    """Return scores as float32 [texts or images, labels], in the order of the labels."""
    scores = np.array(in_label_order(answer, labels), dtype=np.float32)
    return scores.reshape(len(answer.predictions), len(labels))


def _classify(value: Array, num_classes: int, labels: tuple[str, ...], by_row: bool) -> Array:
    """Return the highest values, of each row or of all, in Triton's form: `value:index` or `value:index:label`.

    Equal values keep their order; NaN is last.
    """
    num_rows = len(value) if by_row else 1
    rows = value.reshape(num_rows, value.size // max(1, num_rows))
    if rows.dtype.kind == "b":
        rows = rows.view(np.uint8)
    # A stable sort of the reversed rows, read backwards, keeps equal values in their order.
    order = np.argsort(_comparable(rows)[:, ::-1], axis=1, kind="stable")[:, : -num_classes - 1 : -1]
    highest = rows.shape[1] - 1 - order
    texts = [_format_class(row[i], i, labels) for row, best in zip(rows, highest.tolist(), strict=True) for i in best]
    return _strings(texts).reshape(highest.shape if by_row else highest.shape[1:])


def _comparable(rows: Array) -> Array:
    return np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows


def _format_class(value: Any, index: int, labels: tuple[str, ...]) -> str:
    number = f"{value:f}" if value.dtype.kind == "f" else f"{value:d}"
    return f"{number}:{index}:{labels[index]}" if labels else f"{number}:{index}"


def _strings(texts: list[str]) -> Array:
    strings = np.empty(len(texts), dtype=object)
    strings[:] = texts
    return strings
