"""Decode bodies and encode responses with the codecs of the OpenAI API, without a server or a model."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import orjson
import pytest
from pydantic import BaseModel

from app.inference.unnamed_model import UnnamedModel
from app.protocols.openai.codec import OpenAiRequest
from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.codec import AnswerContext, NamedEvent, Payload, Target
from frameworks.core.errors import InvalidInput, ModelNotFound, RoundhouseError
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import GenerationSpec, Sampling
from frameworks.tasks.speaking import TEXT_TO_AUDIO, describe_speakers
from frameworks.types import ModelSpec, Task, TextSpec
from tests.app.protocols.decoding import decode_body

Kind = TypeVar("Kind", bound=BaseModel)

VOCABULARY_SIZE = 100
CONTEXT = AnswerContext("llama", "1", "abc-1", 1.5, 1_700_000_000)


def _spec(task: Task, text: TextSpec | None = None, generation: GenerationSpec | None = None) -> ModelSpec:
    return ModelSpec("pytorch", task, (), (), "cpu", "float32", 0, text, generation=generation)


def _speaking(num_speakers: int) -> ModelSpec:
    config = SimpleNamespace(num_speakers=num_speakers, speaking_rate=1.5)
    return ModelSpec(
        "pytorch", "text-to-audio", (), (), "cpu", "float32", 0, pipeline=describe_speakers(TEXT_TO_AUDIO, config)
    )


SPECS = {
    "llama": _spec(
        "generate",
        generation=GenerationSpec(64, VOCABULARY_SIZE, frozenset({2}), True, Sampling(temperature=0.7, top_k=40)),
    ),
    "caller": _spec(
        "generate",
        generation=GenerationSpec(
            64,
            VOCABULARY_SIZE,
            frozenset({2}),
            True,
            Sampling(),
            TextFormat("hermes", thinks=True),
            True,
            template_variables=frozenset({"enable_thinking", "date_string"}),
        ),
    ),
    "coder": _spec("generate", generation=GenerationSpec(64, VOCABULARY_SIZE, can_infill=True)),
    "no-template": _spec("generate", generation=GenerationSpec(64, VOCABULARY_SIZE)),
    "embed": _spec("embed", TextSpec(16, embedding_size=8)),
    "embed-two-shorter-sizes": _spec("embed", TextSpec(16, embedding_size=8, shorter_sizes=(2, 4))),
    "embed-any-shorter-size": _spec("embed", TextSpec(16, embedding_size=64, shorter_sizes=tuple(range(1, 64)))),
    "embed-prompts": _spec(
        "embed", TextSpec(16, embedding_size=8, prompts={"query": "q: ", "passage": "p: ", "clustering": "c: "})
    ),
    "embed-sparse": _spec("embed", TextSpec(16, embedding_size=30_522, vectors="sparse", prompts={"query": "q: "})),
    "embed-sides": _spec("embed", TextSpec(16, embedding_size=8, has_sides=True)),
    "embed-unknown-size": _spec("embed", TextSpec(16)),
    "cross-encoder": _spec("classify", TextSpec(16, labels=("LABEL_0",), multi_label=True)),
    "classify": _spec("classify", TextSpec(16, labels=("a", "b"))),
    "tensors": _spec("tensor"),
    "voice": _speaking(num_speakers=1),
    "voices": _speaking(num_speakers=12),
}


ONLY = {"generate": "llama", "embed": "embed", "classify": "classify", "rerank": "cross-encoder", "task": "voice"}
"""By kind, the model that a request without a name means."""


def find_spec(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
    """Return the spec of a model, as the pipeline does."""
    if isinstance(name, UnnamedModel):
        name = ONLY[name.kinds[0]]
    if name not in SPECS:
        raise ModelNotFound(name, SPECS)
    return SPECS[name]


def decode(codec: BodyCodec, body: object = None, /, **fields: object) -> OpenAiRequest:
    """Decode `body`: bytes or a JSON value. Without it, decode an object of the fields."""
    content = body if isinstance(body, bytes) else orjson.dumps(fields if body is None else body)
    decoded: OpenAiRequest = decode_body(codec, content, Target(), find_spec)
    return decoded


def decode_error(codec: BodyCodec, body: object = None, /, **fields: object) -> RoundhouseError:
    """Return the error that the codec raises for a body."""
    with pytest.raises(RoundhouseError) as refused:
        decode(codec, body, **fields)
    return refused.value


def assert_refused(codec: BodyCodec, field: str, *words: str, **fields: object) -> None:
    """Check that the codec raises InvalidInput for the field, with all words in the message."""
    error = decode_error(codec, **fields)
    assert isinstance(error, InvalidInput), error
    assert error.field == field, error
    for word in words:
        assert word in error.message


def encode(codec: BodyCodec, request: OpenAiRequest, given: object) -> Any:
    """Return the response body of an encode of the pipeline."""
    encoded = codec.encode(request, given, CONTEXT)
    assert isinstance(encoded, bytes)
    return orjson.loads(encoded)


def events(payloads: Iterable[Payload]) -> list[Any]:
    """Parse the events of a stream except [DONE]. The name of an event is the `type` of its data."""
    parsed: list[Any] = []
    for payload in payloads:
        name, data = payload if isinstance(payload, NamedEvent) else (None, payload)
        parsed.append(data if data == b"[DONE]" else orjson.loads(data))
        assert name is None or name.decode() == parsed[-1]["type"]
    return parsed


def check_is(kind: type[Kind], content: object) -> Kind:
    """Parse a response by the class of OpenAI's client. Fails for a field that the class lacks."""
    model = kind.model_validate(content, strict=True)
    _check_no_more(model)
    return model


def _check_no_more(value: object) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, value
        for name in type(value).model_fields:
            _check_no_more(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            _check_no_more(each)
