"""Step 5, ENCODE, of the protocol's REST form: a JSON object, with the bytes of binary tensors behind it."""

from typing import Any

import orjson

from app.protocols.codec import AnswerContext, EncodedResponse, elements_of
from app.protocols.json_output import to_json_value
from app.protocols.open_inference.datatypes import to_raw
from app.protocols.open_inference.infer_response import output_tensors
from app.protocols.open_inference.infer_types import InferRequest, OutputTensor
from app.protocols.open_inference.signature import signature_of_request
from frameworks.errors import InvalidInput
from frameworks.types import EmbedAnswer

HEADER_LENGTH = b"inference-header-content-length"
"""The HTTP header that says how many bytes of a body are its JSON."""


def check_outputs(request: InferRequest) -> None:
    """Raises InvalidInput where an output has no form in JSON and is not asked for as bytes."""
    signature = signature_of_request(request)
    if not signature.binary_only:
        return
    for name, classes, binary in request.outputs:
        if not binary and not classes and name in signature.binary_only:
            raise InvalidInput(
                f"outputs.{name}",
                f'is {signature.outputs[name].datatype}, which travels as binary data only; send "binary_data": true '
                'in its parameters, or "binary_data_output": true in the request\'s',
            )


def elements_one_by_one(request: InferRequest, answer: Any) -> int:
    """How many numbers and strings have to be written one by one: those of bytes are joined."""
    if isinstance(answer, dict):
        wanted_values = [(wanted, answer[wanted.name]) for wanted in request.outputs]
    elif isinstance(answer, EmbedAnswer):
        wanted_values = [(wanted, answer.embeddings) for wanted in request.outputs]
    else:
        return elements_of(answer)
    return sum(
        value.size for wanted, value in wanted_values if not wanted.binary or wanted.classes or value.dtype.hasobject
    )


def write_answer(request: InferRequest, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
    """The body of a 200; that of JSON alone as to_json_value bytes."""
    raws: list[bytes | memoryview] = []
    head: dict[str, Any] = {"model_name": context.model, "model_version": context.version}
    if request.id:
        head["id"] = request.id
    head["outputs"] = [_written(tensor, raws) for tensor in output_tensors(request, answer)]
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raws:
        return text
    headers = [(HEADER_LENGTH, str(len(text)).encode())]
    return EncodedResponse(b"".join([text, *raws]), b"application/octet-stream", headers)


def _written(tensor: OutputTensor, raws: list[bytes | memoryview]) -> dict[str, Any]:
    """In JSON, or its bytes among the others'. NaN and infinities become null in JSON."""
    name, datatype, value, binary = tensor
    written: dict[str, Any] = {"name": name, "datatype": datatype, "shape": value.shape}
    if binary:
        raw = to_raw(value, datatype)
        written["parameters"] = {"binary_data_size": len(raw)}
        raws.append(raw)
    else:
        written["data"] = to_json_value(value.reshape(-1))
    return written
