"""Read `prompt` and `messages`, and write whole responses with generated text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.native.codec import NativeCodec, NativeRequest, encode
from app.protocols.native.fields import GENERATION_FIELDS, InferResponse
from app.protocols.shared.codec import AnswerContext, Target
from frameworks.core.errors import InvalidInput, RequestError
from frameworks.generation.types import (
    Choice,
    Constraint,
    Conversation,
    GenerateAnswer,
    GenerateRequest,
    Message,
    MessageImage,
    Sampling,
    Stopping,
    TokenText,
    Usage,
)
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import GENERATION, find_spec
from tests.app.protocols.strategies import json_values


def read(body: dict[str, Any], model: str = "generate") -> NativeRequest:
    decoded: NativeRequest = decode_body(NativeCodec(), json.dumps(body).encode(), Target(model), find_spec)
    return decoded


def request(body: dict[str, Any]) -> GenerateRequest:
    decoded = read(body).request
    assert isinstance(decoded, GenerateRequest)
    return decoded


def test_prompt_alone_has_defaults() -> None:
    decoded = read({"prompt": "a"})
    assert decoded.request == GenerateRequest(("a",), GENERATION.sampling, Stopping(256, may_be_fewer=True))
    assert (decoded.field, decoded.stream, decoded.priority, decoded.timeout_ms) == ("prompt", False, 5, None)


def test_messages_with_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}}
    texts = [{"type": "text", "text": each} for each in ("ab", "c")]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [texts[0], image, texts[1], image]}]
    fields = [f"messages[1].content[{part}].image_url.url" for part in (1, 3)]
    images = (MessageImage(b"img", 2, fields[0]), MessageImage(b"img", 3, fields[1]))
    expected = Conversation((Message("user", "a"), Message("user", "abc", images=images)))
    assert request({"messages": messages}).prompts == (expected,)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "!"}}, "image_url.url: expected base64, got other text"),
        ({"type": "image_url", "image_url": {"url": ""}}, "image_url.url: expected the image of a file, got an empty"),
        ({"type": "image_url", "image_url": {"url": "ftp://a.org/a.png"}}, "image_url.url: expected base64 or a data"),
        ({"type": "image", "image": "YQ"}, 'type: expected "image_url", "text" or "video_url", got "image"'),
    ],
)
def test_other_image_of_message_is_refused(part: dict[str, Any], message: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(InvalidInput) as caught:
        read({"messages": messages})
    assert caught.value.message.startswith(f"messages[0].content[1].{message}")


def test_messages_with_every_option() -> None:
    decoded = read(
        {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 7,
            "temperature": 0,
            "top_k": -1,
            "stop": "b",
            "seed": 1,
            "n": 2,
            "logprobs": 3,
            "regex": "[a-z]",
            "stream": True,
            "priority": 1,
            "timeout_ms": 100,
        }
    )
    assert decoded.request == GenerateRequest(
        (Conversation((Message("user", "a"),)),),
        Sampling(temperature=0.0, seed=1, top_logprobs=3),
        Stopping(7, strings=("b",)),
        Constraint("regex", "[a-z]"),
        2,
    )
    assert (decoded.field, decoded.stream, decoded.priority, decoded.timeout_ms) == ("messages", True, 1, 100)


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("generate", {"prompt": ["a"]}, "prompt: expected a string, got an array; send a conversation in messages"),
        ("generate", {"prompt": 1}, "prompt: expected a string, got 1"),
        ("generate", {"messages": "a"}, 'messages: expected a list of 1 to 10000 objects like .*, got "a"'),
        (
            "generate-plain",
            {"messages": [{"role": "user", "content": "a"}]},
            "messages: expected a model with a chat template",
        ),
        ("generate", {"text": "a"}, "text: this model's task is generate; send the field prompt, or messages"),
        ("generate", {"input_data": [1]}, "input_data: this model's task is generate; send the field prompt"),
        ("generate", {"inputs": {}}, "inputs: this model's task is generate; send the field prompt"),
        ("embed", {"prompt": "a"}, "prompt: this model's task is embed; send the field text"),
        ("embed-onnx", {"prompt": "a"}, "prompt: this model's task is embed; send the field text"),
        ("matrix", {"prompt": "a"}, r"prompt: this model reads no text; its inputs are x: float32 \[-1, 3\]"),
        ("generate", {"prompt": "a", "normalize": True}, "normalize: expected an option of prompt, which are"),
        ("generate", {"prompt": "a", "messages": []}, "messages: expected exactly one of .*, got prompt and messages"),
        ("generate", {"prompt": "a", "stream": "yes"}, 'stream: expected a boolean, got "yes"'),
        ("generate", {"prompt": "a", "priority": 10}, "priority: expected an integer from 1 .*, got 10"),
        ("generate", {"prompt": "a", "regex": "a", "choice": ["a"]}, "choice: expected one constraint, got regex too"),
    ],
)
def test_wrong_field_is_named(model: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(body, model)


@given(st.dictionaries(st.sampled_from(sorted(GENERATION_FIELDS)), json_values | st.integers(-2, 200), max_size=3))
def test_any_options_are_read_or_refused(options: dict[str, Any]) -> None:
    refusal = None
    try:
        assert request({"prompt": "a"} | options).prompts == ("a",)
    except RequestError as error:
        refusal = error.message
    assert refusal is None or refusal.startswith(tuple(options))


def encoded(answer: GenerateAnswer, **options: Any) -> Any:
    native = read({"prompt": "a"} | options)
    body = json.loads(encode(native, answer, AnswerContext("m", "1", "id", 1.23456, 0)))
    assert body.keys() <= InferResponse.model_fields.keys()
    InferResponse.model_validate(body)
    assert (body.pop("model_name"), body.pop("version"), body.pop("latency_ms")) == ("m", "1", 1.235)
    return body


def test_response_with_one_text() -> None:
    answer = GenerateAnswer([Choice("hällo", "stop")], Usage(3, 2))
    assert encoded(answer) == {"text": "hällo", "finish_reason": "stop", "tokens_generated": 2, "prompt_tokens": 3}


def test_response_with_several_texts() -> None:
    answer = GenerateAnswer([Choice("a", "stop"), Choice("b", "length")], Usage(3, 4))
    assert encoded(answer, n=2) == {
        "choices": [
            {"index": 0, "text": "a", "finish_reason": "stop"},
            {"index": 1, "text": "b", "finish_reason": "length"},
        ],
        "tokens_generated": 4,
        "prompt_tokens": 3,
    }


def test_response_with_log_probabilities() -> None:
    token = TokenText(7, "a", -0.5, ((7, "a", -0.5), (8, "b", float("-inf"))))
    chosen = {"token": "a", "token_id": 7, "logprob": -0.5}
    impossible = {"token": "b", "token_id": 8, "logprob": None}
    answer = GenerateAnswer([Choice("a", "length", [token])], Usage(3, 1))
    assert encoded(answer, logprobs=2)["logprobs"] == [chosen | {"top": [chosen, impossible]}]
    assert encoded(GenerateAnswer([Choice("", "stop")], Usage(3, 1)), logprobs=True)["logprobs"] == []
    assert "logprobs" not in encoded(GenerateAnswer([Choice("", "stop")], Usage(3, 1)))
