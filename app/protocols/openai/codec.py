"""A route of the OpenAI API as a wire format: what all of them share, around what each of them reads and writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.inference.pipeline import FindSpec
from app.protocols.codec import AnswerContext, JsonCodec, StreamWriter, Target
from app.protocols.generation_fields import read_whole
from app.protocols.json_body import Document, ExactParseNeeded, describe_type, parse, parse_exact
from app.protocols.openai.errors import error_body
from app.protocols.openai.field_policy import FieldPolicy
from frameworks.errors import InvalidInput
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY, ModelSpec, Task

Fields = Mapping[str, Any]
_LONGEST_TIMEOUT_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What a route has read. `form`: what the answer's shape depends on, of a type that the route itself knows."""

    request: Any
    stream: bool = False
    form: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """As DecodedRequest of app/inference/pipeline.py; `form` as of Asked."""

    request: Any
    spec: ModelSpec
    priority: int
    timeout_ms: int | None
    stream: bool
    form: Any


@dataclass(frozen=True, slots=True)
class OpenAiCodec(JsonCodec):
    """As Codec of app/protocols/codec.py.

    `tasks`: of the models that the route is for. `read` is given the body's members, less those that are null, in
    Python's own values; it raises InvalidInput, UnknownField. `stream`: None for a route that answers in one piece.
    `own_name`: what the route calls a field that the service names, which knows texts and pairs alone.
    """

    path: str
    tasks: tuple[Task, ...]
    vocabulary: FieldPolicy
    read: Callable[[Fields, ModelSpec], Asked]
    write: Callable[[Question, Any, AnswerContext], bytes]
    stream: Callable[[Question, AnswerContext], StreamWriter] | None = None
    own_name: Callable[[str], str] = str

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> Question:
        """Raises InvalidJson, InvalidInput, UnknownField, and what `find_spec` raises."""
        try:
            return self._decode(parse(body), target, find_spec)
        except ExactParseNeeded:
            return self._decode(parse_exact(body), target, find_spec)

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes:
        return self.write(decoded, answer, context)

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter:
        assert self.stream is not None
        return self.stream(decoded, context)

    def error_body(self, status: int, code: str, message: str, request_id: str) -> bytes:
        if code == "invalid_input":
            field, colon, words = message.partition(": ")
            message = f"{self.own_name(field)}{colon}{words}"
        return error_body(status, code, message)

    def _decode(self, document: Document, target: Target, find_spec: FindSpec) -> Question:
        if not document.is_object(document.root):
            raise InvalidInput("body", f"is {describe_type(document.root)}; wants a JSON object")
        members = document.members(document.root, self.vocabulary.known)
        # Clients write null for what their callers leave out.
        members = {name: node for name, node in members.items() if node is not None}
        spec = self._find_spec(members, target, find_spec)
        if spec.task not in self.tasks:
            raise InvalidInput(
                "model", f"its task is {spec.task}; {self.path} is for models whose task is {' or '.join(self.tasks)}"
            )
        fields = {name: document.python(node) for name, node in members.items()}
        self.vocabulary.check(fields)
        priority = read_whole(fields, "priority", 1, LAST_PRIORITY) or DEFAULT_PRIORITY
        timeout_ms = read_whole(fields, "timeout_ms", 1, _LONGEST_TIMEOUT_MS)
        asked = self.read(fields, spec)
        return Question(asked.request, spec, priority, timeout_ms, asked.stream, asked.form)

    def _find_spec(self, members: Fields, target: Target, find_spec: FindSpec) -> ModelSpec:
        name = members.get("model", target.model)
        if not isinstance(name, str) or not name:
            given = "is missing" if name is None else "is empty" if name == "" else f"is {describe_type(name)}"
            raise InvalidInput("model", f"{given}; wants the name of a model; GET /v1/models lists them")
        return find_spec(name, target.version, lambda: read_whole(members, "timeout_ms", 1, _LONGEST_TIMEOUT_MS))
