"""Forms for models that generate text: prompts, messages and options beside files of images."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.native.codec import NativeRequest
from app.protocols.native.files import CODEC
from app.protocols.native.form_fields import FileOptions, InferFiles
from app.protocols.native.form_generation import GENERATION_PARTS
from app.protocols.native.images import FILE_OPTIONS
from app.protocols.native.multipart import MAX_CONSTRAINT_BYTES, MAX_PROMPT_BYTES
from app.protocols.shared.codec import AnswerContext, Target
from app.protocols.shared.forms import MAX_TEXT_BYTES
from frameworks.core.errors import RequestError, RoundhouseError
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
    TextDelta,
    Usage,
    VisionSpec,
)
from frameworks.types import ModelSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import GENERATION, SPECS, WRITER
from tests.app.protocols.strategies import json_values

SEEING = replace(WRITER, generation=replace(GENERATION, vision=VisionSpec(3, 10_000)))
PLAIN = replace(WRITER, generation=replace(GENERATION, has_chat_template=False, vision=VisionSpec(3, 10_000)))
FORM = CODEC.for_head([(b"content-type", b"multipart/form-data; boundary=b-1")], b"")
PLACE = {"type": "image"}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,dXJs"}}
HELLO = json.dumps([{"role": "user", "content": "Hello"}]).encode()
SECOND_IS_NO_USER = json.dumps([{"role": "system", "content": "Hello"}]).encode()
CONTEXT = AnswerContext("m", "1", "id", 1.0, 1_700_000_000)


def form(*parts: tuple[str, bytes]) -> bytes:
    head = '--b-1\r\ncontent-disposition: form-data; name="%s"\r\n\r\n'
    return b"".join((head % name).encode() + content + b"\r\n" for name, content in parts) + b"--b-1--\r\n"


def read(*parts: tuple[str, bytes], spec: ModelSpec = SEEING) -> NativeRequest:
    decoded: NativeRequest = decode_body(FORM, form(*parts), Target("m"), lambda *_: spec)
    return decoded


def request(*parts: tuple[str, bytes], spec: ModelSpec = SEEING) -> GenerateRequest:
    decoded = read(*parts, spec=spec).request
    assert isinstance(decoded, GenerateRequest)
    return decoded


def talk(messages: Any, *files: bytes) -> tuple[Message, ...]:
    parts = [("images", file) for file in files]
    (prompt,) = request(*parts, ("messages", json.dumps(messages).encode())).prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def refusal(*parts: tuple[str, bytes], spec: ModelSpec = SEEING) -> str:
    with pytest.raises(RoundhouseError) as caught:
        read(*parts, spec=spec)
    return caught.value.message


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def file(number: int, at: int = 0) -> MessageImage:
    return MessageImage(b"%d" % number, at, f"images[{number}]")


def test_images_precede_prompt() -> None:
    alone = Message("user", "What?", images=(MessageImage(b"0", 0, "images"),))
    assert request(("images", b"0"), ("prompt", b"What?")).prompts == (Conversation((alone,)),)
    several = Message("user", "What?", images=(file(0), file(1)))
    parts = (("images", b"0"), ("prompt", b"What?"), ("images", b"1"))
    assert request(*parts).prompts == (Conversation((several,)),)


def test_prompt_alone_is_continued() -> None:
    decoded = read(("prompt", b"Once"), spec=WRITER)
    assert decoded.request == GenerateRequest(("Once",), GENERATION.sampling, Stopping(256, may_be_fewer=True))
    assert (decoded.field, decoded.stream, decoded.priority, decoded.timeout_ms) == ("prompt", False, 5, None)


def test_files_take_places_in_order() -> None:
    messages = [
        {"role": "user", "content": [text("ab"), PLACE, text("c"), PLACE]},
        {"role": "assistant", "content": "d"},
        {"role": "tool", "content": [PLACE, URL]},
    ]
    url = MessageImage(b"url", 0, "messages[2].content[1].image_url.url")
    assert talk(messages, b"0", b"1", b"2") == (
        Message("user", "abc", images=(file(0, 2), file(1, 3))),
        Message("assistant", "d"),
        Message("tool", "", images=(file(2), url)),
    )


def test_files_without_places_precede_last_user() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b"), URL]},
        {"role": "assistant", "content": "c"},
    ]
    url = MessageImage(b"url", 1, "messages[1].content[1].image_url.url")
    assert talk(messages, b"0", b"1") == (
        Message("user", "a"),
        Message("user", "b", images=(file(0), file(1), url)),
        Message("assistant", "c"),
    )


def test_long_messages_have_places_too() -> None:
    messages = [{"role": "user", "content": [text(str(number))]} for number in range(200)]
    messages[150]["content"] = [PLACE, *[text("a")] * 70]
    turns = talk(messages, b"0")
    assert (turns[150].content, turns[150].images) == ("a" * 70, (MessageImage(b"0", 0, "images"),))
    assert [turn.content for turn in turns[151:]] == [str(number) for number in range(151, 200)]


def test_options_are_parts() -> None:
    decoded = read(
        ("prompt", b"Once"), ("max_tokens", b"7"), ("min_tokens", b"1"), ("temperature", b"0.5"), ("top_k", b"-1"),
        ("top_p", b"0.5"), ("min_p", b"0.1"), ("seed", b"3"), ("repetition_penalty", b"1.1"), ("n", b"2"),
        ("frequency_penalty", b"0.5"), ("presence_penalty", b"-0.5"), ("logit_bias", b'{"5": -100}'),
        ("stop", b"x"), ("stop", b"[1]"), ("stop_token_ids", b"4"), ("stop_token_ids", b"5"), ("bad_words", b"7"),
        ("ignore_eos", b"1"), ("logprobs", b"true"), ("stream", b"True"), ("regex", b"[a-z]+"), ("priority", b"2"),
        ("timeout_ms", b"900"),
    )  # fmt: skip
    assert decoded.request == GenerateRequest(
        ("Once",),
        Sampling(1.1, 0.5, -0.5, {5: -100.0}, 0.5, None, 0.5, 0.1, 3, 0, ("7",)),
        Stopping(7, 1, ("x", "[1]"), frozenset({4, 5}), True),
        Constraint("regex", "[a-z]+"),
        2,
    )
    assert (decoded.stream, decoded.priority, decoded.timeout_ms) == (True, 2, 900)


@pytest.mark.parametrize(
    ("parts", "constraint"),
    [
        ([("choice", b"yes"), ("choice", b"7")], Constraint("choice", '["yes","7"]')),
        ([("json_schema", b"true")], Constraint("json_schema", "true")),
        ([("json_schema", b'{"type": "null"}')], Constraint("json_schema", '{"type":"null"}')),
        ([("response_format", b'{"type": "json_object"}')], Constraint("json_object")),
        ([("temperature", b"null")], None),
    ],
)
def test_constraints_are_parts(parts: list[tuple[str, bytes]], constraint: Constraint | None) -> None:
    assert request(("prompt", b"a"), *parts).constraint == constraint


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("images", b"0")], "prompt: expected prompt or messages, got none of them; send one"),
        ([("prompt", b"a"), ("messages", HELLO)], "prompt: expected prompt or messages, got both; send one"),
        ([("image", b"0"), ("prompt", b"a")], "image: expected images beside prompt, got image; name the parts"),
        ([("audio", b"0"), ("messages", HELLO)], "audio: expected images beside messages, got audio"),
        ([("images", b"0"), ("image", b"1")], "image: expected files of one field, got images too"),
        ([("images", b"0"), ("images", b""), ("prompt", b"a")], "images[1]: expected a file, got an empty one"),
        ([("images", b""), ("messages", HELLO)], "images: expected a file, got an empty one"),
        ([("images", b"0")] * 4 + [("prompt", b"a")], "images: expected at most 3 files, got 4; send fewer, or raise"),
        ([("images", b"0")] * 257, "images: expected at most 256 images, got more"),
        ([("prompt", b"a")] * 2, "prompt: expected one value, got several; send one"),
        ([("prompt", b"a"), ("normalize", b"true")], "form.normalize: unknown field"),
        ([("prompt", b"a"), ("temperatur", b"1")], 'temperatur: unknown field; did you mean "temperature"?'),
        ([("image", b"0"), ("temperature", b"1")], "form.temperature: unknown field"),
        ([("prompt", b"a"), ("temperature", b"warm")], 'temperature: expected a number from 0 to 100, got "warm"'),
        ([("prompt", b"a"), ("temperature", b"NaN")], 'temperature: expected a number from 0 to 100, got "NaN"'),
        ([("prompt", b"a"), ("max_tokens", b"0")], "max_tokens: expected an integer from 1 to 2147483647, got 0"),
        ([("prompt", b"a"), ("stream", b"yes")], 'stream: expected true or false, got "yes"'),
        ([("prompt", b"a"), ("priority", b"x")], 'priority: expected an integer of 1 or more, got "x"'),
        ([("prompt", b"a"), ("stop_token_ids", b"x")], "stop_token_ids[0]: expected "),
        ([("prompt", b"a"), ("json_schema", b"{")], "json_schema: expected true or an object"),
        ([("messages", b"Hello")], "messages: expected a list of messages as JSON, got other text: "),
        ([("messages", b"")], "messages: expected a list of messages as JSON, got other text: "),
        ([("messages", b"{}")], "messages: expected a list of 1 to 10000 objects, got an object"),
        ([("messages", b"[" * 5000)], "messages: expected a list of messages as JSON, got other text: "),
        ([("messages", b'[{"role": "user"}]')], "messages[0].content: expected "),
        ([("messages", b"\xff")], "messages: expected text in UTF-8"),
        ([("images", b"0"), ("messages", SECOND_IS_NO_USER)], "images: expected a message with the role user"),
    ],
)  # fmt: skip
def test_wrong_parts_are_refused(parts: list[tuple[str, bytes]], message: str) -> None:
    assert refusal(*parts).startswith(message)


@pytest.mark.parametrize(
    ("places", "files", "message"),
    [
        (2, 1, 'images: expected 2 files, one for each part {"type": "image"} of messages, got 1; send as many files'),
        (1, 2, 'images: expected 1 files, one for each part {"type": "image"} of messages, got 2'),
        (1, 0, 'images: expected 1 files, one for each part {"type": "image"} of messages, got 0'),
    ],
)
def test_other_number_of_places_is_refused(places: int, files: int, message: str) -> None:
    messages = json.dumps([{"role": "user", "content": [PLACE] * places}]).encode()
    assert refusal(*[("images", b"0")] * files, ("messages", messages)).startswith(message)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image", "image": "YQ"}, "image: unknown field"),
        ({"type": "images"}, 'type: expected "image", "image_url", "text" or "video_url", got "images"'),
        ({"type": "image_url", "image_url": {"url": "ftp://a"}}, "image_url.url: expected base64 or a data URL"),
    ],
)
def test_wrong_part_of_message_is_named(part: Mapping[str, Any], message: str) -> None:
    messages = json.dumps([{"role": "user", "content": [text("a"), part]}]).encode()
    assert refusal(("messages", messages)).startswith(f"messages[0].content[1].{message}")


def test_model_that_reads_no_images_refuses_them() -> None:
    for parts in ([("prompt", b"a")], [("messages", HELLO)]):
        blind = refusal(("images", b"0"), *parts, spec=WRITER)
        assert blind.startswith("images: expected no file, as the model reads no images, got 1; name a model that does")
        other = refusal(("images", b"0"), *parts, spec=SPECS["photos"])
        assert other == (
            "images: expected a model that generates text, got another; this model's task is classify; send the field "
            "image"
        )
    assert refusal(("prompt", b"a"), spec=SPECS["embed"]).startswith("prompt: expected a model that generates text")
    assert refusal(("image", b"0"), spec=SEEING).endswith("send the field prompt, or messages, which may have images")


def test_model_without_template_refuses_conversations() -> None:
    assert request(("prompt", b"a"), spec=PLAIN).prompts == ("a",)
    for parts in ([("messages", HELLO)], [("images", b"0"), ("prompt", b"a")]):
        assert refusal(*parts, spec=PLAIN).startswith("messages: expected a model with a chat template")


def test_texts_have_bounds_by_name() -> None:
    long = b"a" * (MAX_TEXT_BYTES + 1)
    assert request(("prompt", long), ("regex", long)).prompts == (long.decode(),)
    for name, limit in (("prompt", MAX_PROMPT_BYTES), ("messages", MAX_PROMPT_BYTES), ("regex", MAX_CONSTRAINT_BYTES)):
        message = refusal((name, b"a" * (limit + 1)))
        assert message == f"{name}: expected at most {limit} bytes, got more; send a shorter text"
    assert refusal(("prompt", b"a"), ("version", long)).startswith("version: expected at most 4096 bytes")


def test_dense_messages_are_long_to_read() -> None:
    dense = json.dumps([{"role": "user", "content": [text("")] * 300}]).encode()
    assert FORM.is_long_to_read(form(("messages", dense)))
    assert not FORM.is_long_to_read(form(("image", dense)))
    assert not FORM.is_long_to_read(form(("messages", HELLO)))


def test_answers_have_form_of_json() -> None:
    decoded = read(("images", b"0"), ("prompt", b"a"), ("stream", b"true"))
    answer = GenerateAnswer([Choice("A star.", "stop")], Usage(5, 3))
    whole = orjson.loads(FORM.encode(decoded, answer, CONTEXT))
    assert (whole["text"], whole["finish_reason"], whole["prompt_tokens"]) == ("A star.", "stop", 5)
    writer = FORM.stream_writer(decoded, CONTEXT)
    assert writer.piece(TextDelta(0, "A")) == [b'{"text":"A","index":0}']


def test_described_parts_are_those_read() -> None:
    files = {"image", "audio", "video", "images"}
    assert set(InferFiles.model_fields) == files | FILE_OPTIONS | GENERATION_PARTS
    assert set(FileOptions.model_fields) == FILE_OPTIONS


@given(st.dictionaries(st.sampled_from(sorted(GENERATION_PARTS)), json_values), st.integers(0, 2))
def test_any_parts_are_read_or_refused(values: dict[str, Any], count: int) -> None:
    parts = [(name, json.dumps(value).encode()) for name, value in values.items()]
    with suppress(RequestError):
        read(*[("images", b"0")] * count, *[each for each in parts if b"--b-1" not in each[1]])
