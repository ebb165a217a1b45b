"""Triton's generate extension: /v2/models/{name}/generate answers with a text, …/generate_stream with its pieces.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md; for the pieces also
generate_rest.yaml of https://github.com/kserve/open-inference-protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import orjson

from app.inference.pipeline import FindSpec
from app.protocols.codec import AnswerContext, Header, JsonCodec, StreamWriter, Target, check_media_type
from app.protocols.json_body import describe_type, parse_exact
from app.protocols.open_inference.errors import OpenInferenceErrorResponse, error_body
from app.protocols.open_inference.generate_request import WantedText, gather, read_wanted_text
from app.protocols.open_inference.generate_response import Pieces, WholeInOnePiece, describe
from app.protocols.open_inference.generate_schemas import GenerateTextRequest, GenerateTextResponse
from app.protocols.open_inference.infer_request import own_name, read_priority, read_timeout_ms
from app.protocols.routes import Route, RouteDescription
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.types import ModelSpec

_FORM = b"application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class GenerateQuestion:
    """As DecodedRequest of the pipeline. `in_pieces`: one event per piece; else one event with the whole text."""

    wanted: WantedText
    spec: ModelSpec
    id: str
    priority: int
    timeout_ms: float | None
    stream: bool
    in_pieces: bool

    @property
    def request(self) -> GenerateRequest:
        return self.wanted.request


@dataclass(frozen=True, slots=True)
class GenerateCodec(JsonCodec):
    """As Codec of app/protocols/codec.py. `streams`: of generate_stream."""

    streams: bool

    def for_headers(self, headers: Sequence[Header]) -> Self:
        check_media_type(_without_curls_form(headers))
        return self

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> GenerateQuestion:
        """Raises InvalidJson, InvalidInput, UnknownField, and what `find_spec` raises."""
        assert target.model is not None
        content = parse_exact(body).root
        options = gather(content)
        try:
            timeout_ms = read_timeout_ms(options.fields)
            spec = _find_spec(target, find_spec, timeout_ms)
            if spec.generation is None:
                raise InvalidInput("text_input", _what_it_answers(target.model, spec))
            wanted = read_wanted_text(options, spec.generation)
            if self.streams and wanted.with_input and wanted.stream is not False:
                raise InvalidInput("exclude_input_in_output", "is false; a stream has the new text alone: leave it out")
            if not self.streams and wanted.stream:
                raise InvalidInput(
                    "stream",
                    "is true, and generate answers in one piece; post to generate_stream in its place, or leave it out",
                )
            return GenerateQuestion(
                wanted,
                spec,
                _read_id(content.get("id")),
                read_priority(options.fields),
                timeout_ms,
                self.streams,
                wanted.stream is not False,
            )
        except InvalidInput as error:
            raise options.renamed(error) from None

    def encode(self, question: GenerateQuestion, answer: GenerateAnswer, context: AnswerContext) -> bytes:
        return orjson.dumps(describe(question.wanted, question.id, answer, context))

    def stream_writer(self, question: GenerateQuestion, context: AnswerContext) -> StreamWriter:
        kind = Pieces if question.in_pieces else WholeInOnePiece
        return kind(question.wanted, question.id, context)

    def error_body(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return error_body(status, code, own_name(message), request_id)


def _without_curls_form(headers: Sequence[Header]) -> Sequence[Header]:
    """The calls in Triton's own pages are curl's with -d, which says that its JSON is a form. The same from a web page
    comes with an origin: pages may post forms to any server without asking it.
    """
    if any(name == b"origin" for name, _ in headers):
        return headers
    return [(name, value) for name, value in headers if (name, value.lower()) != (b"content-type", _FORM)]


def _find_spec(target: Target, find_spec: FindSpec, timeout_ms: float | None) -> ModelSpec:
    assert target.model is not None
    return find_spec(target.model, target.version, lambda: None if timeout_ms is None else ceil(timeout_ms))


def _what_it_answers(name: str, spec: ModelSpec) -> str:
    """The remedy for who asks another kind of model for a text."""
    return (
        f'model "{name}" writes no text, its task is {spec.task}; post its inputs to /v2/models/{name}/infer '
        f"or /models/{name}/infer (GET /v2/models/{name} describes them)"
    )


def _read_id(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput("id", f"is {describe_type(value)}; wants a string, which the answer repeats")
    return value


def _route(path: str, streams: bool) -> Route:
    summary = "Continue a text, piece by piece" if streams else "Continue a text"
    text = RouteDescription(
        "open_inference", summary, GenerateTextRequest, GenerateTextResponse, OpenInferenceErrorResponse, streams
    )
    return Route(path, GenerateCodec(streams), text)


ROUTES = tuple(
    _route(f"/v2/models/{{name}}{version}/{'generate_stream' if streams else 'generate'}", streams)
    for streams in (False, True)
    for version in ("", "/versions/{version}")
)
