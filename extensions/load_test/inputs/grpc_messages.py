"""Write ModelInferRequest messages, and read metadata and pieces of generated text."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError

from app.grpc.messages import INFERENCE_SERVICE, ModelInferRequest, ModelMetadataRequest, ModelMetadataResponse
from app.grpc.messages import ModelStreamInferResponse as StreamResponse
from extensions.load_test.inputs.open_inference import checked_inputs, checked_shape, raw_tensor

INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
STREAM_INFER = f"/{INFERENCE_SERVICE}/ModelStreamInfer"
METADATA = f"/{INFERENCE_SERVICE}/ModelMetadata"

_FIELDS = frozenset({"id", "model_name", "model_version", "parameters", "inputs", "outputs"})
_MAX_INTEGER = 2**63
_TEXT_OUTPUT = "text_output"
_LENGTH_BYTES = 4


class BadMessage(Exception):
    """The bytes are no message of the expected kind."""


def infer_request(request: dict[str, Any], model: str) -> bytes:
    """Return the message of a request in JSON form, with raw contents. Raises ValueError, which names the field."""
    if unknown := request.keys() - _FIELDS:
        raise ValueError(f"{min(unknown)}: expected one of {', '.join(sorted(_FIELDS))}, got another field")
    message = ModelInferRequest(
        model_name=_text(request, "model_name", model), model_version=_text(request, "model_version", "")
    )
    message.id = _text(request, "id", "")
    _write_parameters(message.parameters, request, "")
    for field, tensor in checked_inputs(request):
        added = message.inputs.add(
            name=_text(tensor, "name", ""),
            datatype=_text(tensor, "datatype", ""),
            shape=checked_shape(tensor, field),
        )
        _write_parameters(added.parameters, tensor, f"{field}.")
        message.raw_input_contents.append(bytes(raw_tensor(tensor, field)))
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise ValueError("outputs: expected a list of objects, got another value")
    for index, output in enumerate(outputs):
        added = message.outputs.add(name=_text(output, "name", ""))
        _write_parameters(added.parameters, output, f"outputs[{index}].")
    content: bytes = message.SerializeToString()
    return content


def metadata_request(model: str) -> bytes:
    """Return the message that asks for the description of a model."""
    content: bytes = ModelMetadataRequest(name=model).SerializeToString()
    return content


def description_of(content: bytes) -> dict[str, Any]:
    """Return the description of a model in the form of `GET /v2/models/{name}`. Raises BadMessage."""
    message = _parsed(ModelMetadataResponse, content)
    return {"inputs": _tensors(message.inputs), "outputs": _tensors(message.outputs)}


def read_piece(content: bytes) -> tuple[bool, str]:
    """Return whether a response of a stream has new text, and its error; "" without an error. Raises BadMessage."""
    message = _parsed(StreamResponse, content)
    response = message.infer_response
    raw = response.raw_output_contents
    for index, output in enumerate(response.outputs):
        if output.name == _TEXT_OUTPUT:
            has_raw_text = index < len(raw) and len(raw[index]) > _LENGTH_BYTES
            return has_raw_text or any(output.contents.bytes_contents), message.error_message
    return False, message.error_message


def _parsed(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError:
        raise BadMessage from None


def _tensors(tensors: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in tensors]


def _text(holder: dict[str, Any], name: str, default: str) -> str:
    found = holder.get(name, default)
    if not isinstance(found, str):
        raise ValueError(f"{name}: expected a string, got another value")
    return found


def _write_parameters(written: Any, holder: dict[str, Any], field: str) -> None:
    parameters = holder.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError(f"{field}parameters: expected an object, got another value")
    for name, value in parameters.items():
        if isinstance(value, bool):
            written[name].bool_param = value
        elif isinstance(value, int) and -_MAX_INTEGER <= value < _MAX_INTEGER:
            written[name].int64_param = value
        elif isinstance(value, float):
            written[name].double_param = value
        elif isinstance(value, str):
            written[name].string_param = value
        else:
            raise ValueError(f"{field}parameters.{name}: expected a number, string or boolean, got another value")
