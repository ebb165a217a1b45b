"""Check dicts against the messages of Triton's client."""

from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2

MESSAGES: dict[str, Any] = {
    **{name: getattr(service_pb2, name) for name in ("ServerMetadataResponse", "ModelMetadataResponse")},
    **{name: getattr(service_pb2, name) for name in ("ModelStatisticsResponse", "RepositoryIndexResponse")},
    "ModelConfig": model_config_pb2.ModelConfig,
}


def as_message(name: str, fields: dict[str, Any]) -> Any:
    """Convert a dict to a message. Raises ParseError for an unknown field or a wrong type."""
    return json_format.ParseDict(fields, MESSAGES[name]())


def check_message(name: str, fields: dict[str, Any]) -> None:
    """Check that a round trip loses only default values."""
    message = as_message(name, fields)
    back = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert json_format.ParseDict(back, MESSAGES[name]()) == message
    assert {key for key, value in fields.items() if value} == back.keys()
