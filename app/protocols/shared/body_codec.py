"""The codec of routes whose body one pydantic model describes. A route adds the functions that build its request and
its response, and a protocol adds its form of errors.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from pydantic import Field

from app.inference.contract import NamedRequest
from app.inference.unnamed_model import Kind, UnnamedModel
from app.protocols.shared.bodies import Body, TimeoutMs, got, read_body
from app.protocols.shared.chat_turns import is_long_to_parse
from app.protocols.shared.codec import (
    LONG_BYTES,
    AnswerContext,
    EncodedResponse,
    Header,
    JsonCodec,
    StreamWriter,
    Target,
)
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.policy import EMPTY, FieldPolicy
from app.protocols.shared.json.body import Document, describe_type
from app.protocols.shared.json.reading import read_named
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer
from frameworks.tasks.speaking import TEXT_TO_AUDIO
from frameworks.tasks.table import TASKS
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY, ModelSpec, Task

IMAGE_PATHS = "/infer, /v1/embeddings, /v1/classify or /v2/embed"
"""Where images are accepted, beside the Open Inference Protocol."""
IGNORED_HEADER = b"x-roundhouse-ignored"
"""Names the fields of the body that have no effect on the model."""

PLACEHOLDERS = frozenset({"default/not-specified", "dummy", "tgi"})
"""Names that clients send for a model that the caller did not name: of Infinity, and of huggingface_hub for TGI."""
# Hugging Face's client for JavaScript sends the address of the server.
_ADDRESSES = ("http://", "https://")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_DENSE_BYTES = 8 * 1024
_DENSE_VALUES = 1024
_KINDS: dict[Task, tuple[Kind, ...]] = {
    "generate": ("generate",),
    "embed": ("embed",),
    "classify": ("classify", "rerank"),
    "tensor": (),
    **dict.fromkeys(TASKS, ("task",)),
}


class RequestBody(Body):
    """Fields of every route."""

    model: str | None = Field(
        None, min_length=1, description="Name of the model. Default: the only one with a task of the route."
    )
    priority: int | None = Field(
        None,
        ge=0,
        le=LAST_PRIORITY,
        description=f"Position in the queue, 1 is first. 0, the default of vLLM and Cohere: {DEFAULT_PRIORITY}.",
    )
    timeout_ms: TimeoutMs = None

    @property
    def streams(self) -> bool:
        """Whether the response is a stream, of a route that has any."""
        return bool(getattr(self, "stream", False))


class _Deadline(Body):
    timeout_ms: TimeoutMs = None


@dataclass(frozen=True, slots=True)
class BodyRequest:
    """As DecodedRequest of app/inference/contract.py. `body`: the validated body, of the class of its route."""

    request: Any
    spec: ModelSpec
    body: Any
    priority: int
    timeout_ms: int | None
    stream: bool
    codec: "BodyCodec"
    """Encodes the response."""
    ignored: tuple[str, ...] = ()
    """Fields without effect on this model, named in the response."""


@dataclass(frozen=True, slots=True)
class BodyCodec(JsonCodec, ABC):
    """As Codec of app/protocols/shared/codec.py; a protocol adds `error_body`.

    `tasks`: of the models that the route serves. `build`: from the validated body to the request of the pipeline; may
    raise InvalidInput. `check`: refuses fields whose validation would take long, and applies the policies of objects in
    the body; returns the fields that are ignored. `stream`: None for a route that does
    not stream. `rename`: from a field as the pipeline names it to its name in the body. `kinds`: of the model that a
    body without a name means, in order of preference; empty: those of `tasks`. `by_task`: the codecs of requests for
    models of other tasks. `reads_images`: whether models that read only images are served too. `ignored`: returns the
    fields that have no effect on a model.
    """

    path: str
    tasks: tuple[Task, ...]
    body: type[RequestBody]
    build: Callable[[Any, ModelSpec], Any]
    write: Callable[[BodyRequest, Any, AnswerContext], bytes | EncodedResponse]
    policy: FieldPolicy = EMPTY
    stream: Callable[[BodyRequest, AnswerContext], StreamWriter] | None = None
    rename: Callable[[str], str] = str
    check: Callable[[dict[str, Any], ModelSpec], tuple[str, ...] | None] | None = None
    kinds: tuple[Kind, ...] = ()
    by_task: Mapping[Task, "BodyCodec"] = field(default_factory=dict)
    reads_images: bool = False
    ignored: Callable[[Any, ModelSpec], tuple[str, ...]] | None = None
    fields: frozenset[str] = field(init=False)
    """Every field that is not unknown, with those of `by_task`."""
    unnamed: UnnamedModel = field(init=False)

    def __post_init__(self) -> None:
        others = frozenset[str]().union(*(codec.fields for codec in self.by_task.values()))
        object.__setattr__(self, "fields", others | self._own_fields())
        kinds = self.kinds or tuple(dict.fromkeys(kind for task in self.tasks for kind in _KINDS[task]))
        object.__setattr__(self, "unnamed", UnnamedModel(kinds))

    def is_long_to_read(self, body: bytes) -> bool:
        """Every value of these bodies becomes a Python object, so that many short ones take long."""
        return len(body) >= LONG_BYTES or (len(body) >= _DENSE_BYTES and body.count(b",") >= _DENSE_VALUES)

    def is_long_to_write(self, decoded: Any, answer: Any) -> bool:
        if type(answer) is GenerateAnswer and is_long_to_parse(decoded.request, answer):
            return True
        if decoded.spec is not None and decoded.spec.task == TEXT_TO_AUDIO.name:
            return True
        return JsonCodec.is_long_to_write(self, decoded, answer)

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Raises InvalidJson, InvalidInput, UnknownField."""
        return read_named(body, partial(self._read, target))

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes | EncodedResponse:
        codec: BodyCodec = decoded.codec
        body = codec.write(decoded, answer, context)
        headers = self.headers_of(decoded)
        if isinstance(body, EncodedResponse):
            return body._replace(headers=[*body.headers, *headers])
        return EncodedResponse(body, b"application/json", headers) if headers else body

    @abstractmethod
    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        """As Codec.error_body."""

    def headers_of(self, decoded: Any) -> list[Header]:
        request: BodyRequest = decoded
        if not request.ignored:
            return []
        # The caller chose some of the names, which must not end the header.
        names = [name for name in request.ignored if _HEADER_NAME.fullmatch(name)]
        return [(IGNORED_HEADER, ", ".join(names or ["others"]).encode())]

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter:
        codec: BodyCodec = decoded.codec
        assert codec.stream is not None
        return codec.stream(decoded, context)

    def renamed(self, error: ErrorReply) -> ErrorReply:
        """Return the error with the name of its field in the body."""
        if error.code == "invalid_input" and error.field is not None:
            return error.with_field(self.rename(error.field))
        return error

    def _read(self, target: Target, document: Document) -> NamedRequest:
        if not document.is_object(document.root):
            raise InvalidInput("body", f"expected an object, got {describe_type(document.root)}")
        members = document.members(document.root, self.fields)
        decode = partial(self._decode, document, members)
        name = target.model or self.model_of(members)
        return NamedRequest(name, target.version, decode, partial(timeout_ms_of, members))

    def _decode(self, document: Document, members: dict[str, Any], spec: ModelSpec) -> BodyRequest:
        if spec.task in self.by_task:
            codec = self.by_task[spec.task]
            return codec._decode(document, document.members(document.root, codec.fields), spec)
        self.check_task(spec)
        if spec.text is None and spec.image is not None and not self.reads_images:
            raise InvalidInput(
                "model", f"expected a model that reads texts, got one that reads images; send images to {IMAGE_PATHS}"
            )
        if self.by_task:
            members = document.members(document.root, self._own_fields())
        return self.decoded({name: document.python(node) for name, node in members.items() if node is not None}, spec)

    def decoded(self, fields: dict[str, Any], spec: ModelSpec) -> BodyRequest:
        """Return the request of a body for a model of the right task. Raises InvalidInput, UnknownField."""
        ignored = () if self.check is None else self.check(fields, spec) or ()
        ignored += self.policy.apply(fields)
        body = read_body(self.body, fields)
        request = self.build(body, spec)
        stream = self.stream is not None and body.streams
        ignored += () if self.ignored is None else self.ignored(body, spec)
        priority = body.priority or DEFAULT_PRIORITY
        return BodyRequest(request, spec, body, priority, body.timeout_ms, stream, self, ignored)

    def check_task(self, spec: ModelSpec) -> None:
        """Raise InvalidInput for a model of another task."""
        if spec.task not in self.tasks:
            raise InvalidInput(
                "model",
                f"expected a model whose task is {' or '.join(self.tasks)}, got one whose task is {spec.task}; "
                f"{self.path} serves no other task",
            )

    def with_tasks(self, tasks: Iterable[Task], codec: "BodyCodec") -> Self:
        """Return a codec that leaves requests for models of these tasks to another codec."""
        kinds = tuple(dict.fromkeys(self.unnamed.kinds + codec.unnamed.kinds))
        return replace(self, kinds=kinds, by_task={**self.by_task, **dict.fromkeys(tasks, codec)})

    def _own_fields(self) -> frozenset[str]:
        return frozenset(self.body.model_fields.keys() | self.policy.refusals.keys())

    def model_of(self, members: Mapping[str, Any]) -> str | UnnamedModel:
        """Return the model that the fields of a body name. Raises InvalidInput."""
        name = members.get("model")
        if name is None:
            return self.unnamed
        if isinstance(name, str) and name:
            return replace(self.unnamed, placeholder=name) if is_placeholder(name) else name
        raise InvalidInput("model", f"expected the name of a model, got {got(name)}; GET /v1/models lists the models")


def timeout_ms_of(members: Mapping[str, Any]) -> int | None:
    """Return the deadline that the fields of a body name. Raises InvalidInput."""
    return read_body(_Deadline, {"timeout_ms": members.get("timeout_ms")}).timeout_ms


def is_placeholder(name: str) -> bool:
    """Return whether clients send this name for a model that the caller did not name: PLACEHOLDERS and addresses."""
    return name in PLACEHOLDERS or name.startswith(_ADDRESSES)
