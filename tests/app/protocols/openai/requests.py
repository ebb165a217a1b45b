"""Questions to the formats of the OpenAI API, without a server: models are their specs alone."""

from typing import Any, TypeVar

import orjson
import pytest
from pydantic import BaseModel

from app.protocols.codec import AnswerContext, Target
from app.protocols.openai.codec import OpenAiCodec, Question
from frameworks.errors import InvalidInput, ModelNotFound, RoundhouseError
from frameworks.generation.types import GenerationSpec, Sampling
from frameworks.types import ModelSpec, Task, TextSpec

Kind = TypeVar("Kind", bound=BaseModel)

VOCABULARY_SIZE = 100
CONTEXT = AnswerContext("llama", "1", "abc-1", 1.5, 1_700_000_000)


def _spec(task: Task, text: TextSpec | None = None, generation: GenerationSpec | None = None) -> ModelSpec:
    return ModelSpec("pytorch", task, (), (), "cpu", "float32", 0, text, generation=generation)


SPECS = {
    "llama": _spec(
        "generate",
        generation=GenerationSpec(64, VOCABULARY_SIZE, frozenset({2}), True, Sampling(temperature=0.7, top_k=40)),
    ),
    "untalkative": _spec("generate", generation=GenerationSpec(64, VOCABULARY_SIZE)),
    "embed": _spec("embed", TextSpec(16, embedding_size=8)),
    "embed-cuts": _spec("embed", TextSpec(16, embedding_size=8, shorter_sizes=(2, 4))),
    "embed-cuts-anywhere": _spec("embed", TextSpec(16, embedding_size=64, shorter_sizes=tuple(range(1, 64)))),
    "embed-of-any-size": _spec("embed", TextSpec(16)),
    "cross-encoder": _spec("classify", TextSpec(16, labels=("LABEL_0",), multi_label=True)),
    "classify": _spec("classify", TextSpec(16, labels=("a", "b"))),
    "tensors": _spec("tensor"),
}


def find_spec(name: str, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
    """As the endpoint finds a model's spec."""
    if name not in SPECS:
        raise ModelNotFound(name, SPECS)
    return SPECS[name]


def ask(codec: OpenAiCodec, body: object = None, /, **fields: object) -> Question:
    """The question in a body: these fields, or `body` as it is."""
    content = body if isinstance(body, bytes) else orjson.dumps(fields if body is None else body)
    return codec.decode(content, Target(), find_spec)


def refusal(codec: OpenAiCodec, body: object = None, /, **fields: object) -> RoundhouseError:
    """What the question is refused with."""
    with pytest.raises(RoundhouseError) as refused:
        ask(codec, body, **fields)
    return refused.value


def assert_refused(codec: OpenAiCodec, field: str, *words: str, **fields: object) -> None:
    """The question is refused for this field, in a message that has all these words."""
    error = refusal(codec, **fields)
    assert isinstance(error, InvalidInput), error
    assert error.field == field, error
    for word in words:
        assert word in error.message


def answer(codec: OpenAiCodec, question: Question, given: object) -> Any:
    """What the caller of `question` reads."""
    return orjson.loads(codec.encode(question, given, CONTEXT))


def events(payloads: list[bytes]) -> list[Any]:
    """What the caller of a stream reads; the last event as it is."""
    return [payload if payload == b"[DONE]" else orjson.loads(payload) for payload in payloads]


def check_is(kind: type[Kind], content: object) -> Kind:
    """The answer by the client's own model of it, which has to have a place for all of it."""
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
