"""The codec of every route of the OpenAI API. A route adds the functions that build its request and its response."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.inference.pipeline import FindSpec
from app.protocols.bodies import Body, TimeoutMs, got, read_body
from app.protocols.codec import LONG_BYTES, AnswerContext, JsonCodec, StreamWriter, Target
from app.protocols.errors import ErrorReply
from app.protocols.json_body import Document, ExactParseNeeded, describe_type, parse_exact
from app.protocols.long_json import parse_body
from app.protocols.openai.field_policy import EMPTY, FieldPolicy
from app.protocols.openai.requests import RequestBody
from frameworks.errors import InvalidInput
from frameworks.types import DEFAULT_PRIORITY, ModelSpec, Task

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_DENSE_BYTES = 8 * 1024
_DENSE_VALUES = 1024
_PARAM = re.compile(r"[^\s:]+")


class _Deadline(Body):
    timeout_ms: TimeoutMs = None


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """As DecodedRequest of app/inference/pipeline.py. `body`: the validated body, of the class of its route."""

    request: Any
    spec: ModelSpec
    body: Any
    priority: int
    timeout_ms: int | None
    stream: bool


@dataclass(frozen=True, slots=True)
class OpenAiCodec(JsonCodec):
    """As Codec of app/protocols/codec.py.

    `tasks`: of the models that the route serves. `build`: from the validated body to the request of the pipeline; may
    raise InvalidInput. `check`: refuses fields whose validation would take long. `stream`: None for a route that does
    not stream. `rename`: from a field as the pipeline names it to its name in the body.
    """

    path: str
    tasks: tuple[Task, ...]
    body: type[RequestBody]
    build: Callable[[Any, ModelSpec], Any]
    write: Callable[[OpenAiRequest, Any, AnswerContext], bytes]
    policy: FieldPolicy = EMPTY
    stream: Callable[[OpenAiRequest, AnswerContext], StreamWriter] | None = None
    rename: Callable[[str], str] = str
    check: Callable[[dict[str, Any], ModelSpec], None] | None = None
    fields: frozenset[str] = field(init=False)
    """Every field that is not unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", frozenset(self.body.model_fields.keys() | self.policy.refusals.keys()))

    def is_long_to_read(self, body: bytes) -> bool:
        """Every value of these bodies becomes a Python object, so that many short ones take long."""
        return len(body) >= LONG_BYTES or (len(body) >= _DENSE_BYTES and body.count(b",") >= _DENSE_VALUES)

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> OpenAiRequest:
        """Raises InvalidJson, InvalidInput, UnknownField, and the errors of `find_spec`."""
        try:
            return self._decode(parse_body(body), find_spec)
        except ExactParseNeeded:
            return self._decode(parse_exact(body), find_spec)

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes:
        return self.write(decoded, answer, context)

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter:
        assert self.stream is not None
        return self.stream(decoded, context)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        if error.code == "invalid_input" and error.field is not None:
            error = error.with_field(self.rename(error.field))
        return error_body(error)

    def _decode(self, document: Document, find_spec: FindSpec) -> OpenAiRequest:
        if not document.is_object(document.root):
            raise InvalidInput("body", f"expected an object, got {describe_type(document.root)}")
        members = document.members(document.root, self.fields)
        # The model comes first: a refusal must not cost the conversion of a long body.
        spec = find_spec(_model_of(members), None, lambda: _timeout_ms_of(members))
        if spec.task not in self.tasks:
            raise InvalidInput(
                "model",
                f"expected a model whose task is {' or '.join(self.tasks)}, got one whose task is {spec.task}; "
                f"{self.path} serves no other task",
            )
        fields = {name: document.python(node) for name, node in members.items() if node is not None}
        if self.check is not None:
            self.check(fields, spec)
        self.policy.apply(fields)
        body = read_body(self.body, fields)
        request = self.build(body, spec)
        stream = self.stream is not None and bool(getattr(body, "stream", False))
        return OpenAiRequest(request, spec, body, body.priority or DEFAULT_PRIORITY, body.timeout_ms, stream)


def error_body(error: ErrorReply) -> bytes:
    """Write OpenAI's error body; `param` is the wrong field."""
    content = {
        "message": error.message,
        "type": _ERROR_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error"),
        "param": error.field if error.field and _PARAM.fullmatch(error.field) else None,
        "code": error.code,
    }
    return orjson.dumps({"error": content})


def _model_of(members: dict[str, Any]) -> str:
    name = members.get("model")
    if isinstance(name, str) and name:
        return name
    found = "nothing" if name is None else got(name)
    raise InvalidInput("model", f"expected the name of a model, got {found}; GET /v1/models lists the models")


def _timeout_ms_of(members: dict[str, Any]) -> int | None:
    return read_body(_Deadline, {"timeout_ms": members.get("timeout_ms")}).timeout_ms
