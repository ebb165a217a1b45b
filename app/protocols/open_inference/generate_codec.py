"""Decode and encode Triton's generate extension: generate returns a whole text, generate_stream streams it.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md; for the stream also
generate_rest.yaml of https://github.com/kserve/open-inference-protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Self

import orjson

from app.inference.contract import NamedRequest
from app.protocols.open_inference.errors import OpenInferenceErrorResponse, error_body
from app.protocols.open_inference.generate_fields import GenerateTextRequest
from app.protocols.open_inference.generate_options import Options, collect_options
from app.protocols.open_inference.generate_request import ParsedGenerate, parse_generate
from app.protocols.open_inference.generate_response import (
    GenerateTextResponse,
    StreamedText,
    WholeTextEvent,
    describe_response,
)
from app.protocols.open_inference.infer_request import read_timeout_ms
from app.protocols.open_inference.signature import PROMPT_INPUT
from app.protocols.shared.codec import AnswerContext, Header, JsonCodec, StreamWriter, Target, check_media_type
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.json.reading import parse_body
from app.protocols.shared.routes import Route, RouteDescription
from frameworks.core.errors import FieldError, InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.types import ModelSpec

_FORM = b"application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class DecodedGenerate:
    """A DecodedRequest of app/inference/contract.py. `in_parts`: an event for each part, else one in all."""

    parsed: ParsedGenerate
    spec: ModelSpec
    stream: bool
    in_parts: bool

    @property
    def request(self) -> GenerateRequest:
        return self.parsed.request

    @property
    def priority(self) -> int:
        return self.parsed.priority

    @property
    def timeout_ms(self) -> float | None:
        return self.parsed.timeout_ms


@dataclass(frozen=True, slots=True)
class GenerateCodec(JsonCodec):
    """The Codec of app/protocols/shared/codec.py. `streams`: of generate_stream."""

    streams: bool

    def for_head(self, headers: Sequence[Header], query: bytes) -> Self:
        check_media_type(_without_curls_form(headers))
        return self

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Raises InvalidJson, InvalidInput, UnknownField."""
        assert target.model is not None
        document = parse_body(body)
        options = collect_options(document.python(document.root), with_id=True)
        decode = partial(self._decode, options, target.model)
        return NamedRequest(target.model, target.version, decode, partial(_load_timeout_ms, options))

    def _decode(self, options: Options, model: str, spec: ModelSpec) -> DecodedGenerate:
        if spec.generation is None:
            field = "messages" if "messages" in options.fields else "text_input"
            raise options.rename(InvalidInput(field, _explain_other_task(model, spec)))
        parsed = parse_generate(options, spec.generation)
        if not self.streams and parsed.stream:
            raise options.rename(InvalidInput("stream", "expected false, got true; post to generate_stream instead"))
        return DecodedGenerate(parsed, spec, self.streams, parsed.stream is not False)

    def encode(self, decoded: DecodedGenerate, answer: GenerateAnswer, context: AnswerContext) -> bytes:
        return orjson.dumps(describe_response(decoded.parsed, answer, context))

    def stream_writer(self, decoded: DecodedGenerate, context: AnswerContext) -> StreamWriter:
        writer = StreamedText if decoded.in_parts else WholeTextEvent
        return writer(decoded.parsed, context)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(error.with_field(PROMPT_INPUT) if error.field == "prompt" else error)


def _without_curls_form(headers: Sequence[Header]) -> Sequence[Header]:
    """Drop the content-type of a form, which curl's -d sends for the JSON of Triton's own examples.

    A request with an origin keeps it: a web page may post a form to any server without a CORS check.
    """
    if any(name == b"origin" for name, _ in headers):
        return headers
    return [(name, value) for name, value in headers if (name, value.lower()) != (b"content-type", _FORM)]


def _load_timeout_ms(options: Options) -> int | None:
    """Return the limit of the wait for a load. Raises InvalidInput."""
    try:
        timeout_ms = read_timeout_ms(options.fields)
    except FieldError as error:
        raise options.rename(error) from None
    return None if timeout_ms is None else ceil(timeout_ms)


def _explain_other_task(name: str, spec: ModelSpec) -> str:
    return (
        f'expected a model of task generate, got "{name}" of task {spec.task}; post its inputs to '
        f"/v2/models/{name}/infer or /models/{name}/infer (GET /v2/models/{name} describes them)"
    )


def _route(path: str, streams: bool) -> Route:
    summary = "Continue a text as a stream" if streams else "Continue a text"
    description = RouteDescription(
        "open_inference", summary, GenerateTextRequest, GenerateTextResponse, OpenInferenceErrorResponse, streams
    )
    return Route(path, GenerateCodec(streams), description)


ROUTES = tuple(
    _route(f"/v2/models/{{name}}{version}/{'generate_stream' if streams else 'generate'}", streams)
    for streams in (False, True)
    for version in ("", "/versions/{version}")
)
