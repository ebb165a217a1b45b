"""Whether dicts are the messages of Triton's own proto, as its client has it."""

from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2

MESSAGES: dict[str, Any] = {
    **{name: getattr(service_pb2, name) for name in ("ServerMetadataResponse", "ModelMetadataResponse")},
    **{name: getattr(service_pb2, name) for name in ("ModelStatisticsResponse", "RepositoryIndexResponse")},
    "ModelConfig": model_config_pb2.ModelConfig,
}


def as_message(name: str, told: dict[str, Any]) -> Any:
    """The message that the dict is. Raises ParseError where a field is none of its, or of another type."""
    return json_format.ParseDict(told, MESSAGES[name]())


def check_message(name: str, told: dict[str, Any]) -> None:
    """Nothing is lost on the way there and back but what is the default anyway."""
    message = as_message(name, told)
    back = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert json_format.ParseDict(back, MESSAGES[name]()) == message
    assert {key for key, value in told.items() if value} == back.keys()
