"""Images in forms of /infer and in messages of Triton's generate extension, over a real socket."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import RunningServer, assert_refused
from tests.e2e.vision import TOKENS, openai_message, post, post_form, serving_vision
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES

TWO_PLACES = '[{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}]'


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, Any]]]:
    """A server, and the greedy texts of transformers' `generate` after 0 to 3 images, by model."""
    with serving_vision(tmp_path_factory.mktemp("seeing"), ["smolvlm"]) as running:
        yield running


def test_generate_equals_infer_with_images(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, expected = seeing
    body = {"messages": [openai_message(1)], "temperature": 0, "max_tokens": TOKENS}
    own = server.infer("smolvlm", **body)
    assert own["text"] == expected["smolvlm"][1]
    whole = post(server, "/v2/models/smolvlm/generate", **body).json()
    assert (whole["text_output"], whole["num_input_tokens"]) == (own["text"], own["prompt_tokens"])
    streamed = post(server, "/v2/models/smolvlm/generate_stream", **body)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == own["text"]
    assert events[-1]["num_input_tokens"] == own["prompt_tokens"]


def test_form_equals_messages(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, expected = seeing
    parts = [part if part["type"] == "text" else {"type": "image"} for part in openai_message(2)["content"]]
    messages = json.dumps([{"role": "user", "content": parts}])
    whole = post_form(server, "smolvlm", IMAGES[:2], messages=messages)
    assert whole.json()["text"] == expected["smolvlm"][2]
    streamed = post_form(server, "smolvlm", IMAGES[:2], messages=messages, stream="true")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *events, done = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert ("".join(json.loads(event)["text"] for event in events), done) == (expected["smolvlm"][2], "[DONE]")


def test_form_with_prompt_equals_ollama(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    files = [base64.b64encode(each).decode() for each in IMAGES[:2]]
    message = {"role": "user", "content": "tell me", "images": files}
    options = {"temperature": 0, "num_predict": TOKENS}
    chat = post(server, "/api/chat", model="smolvlm", messages=[message], options=options, stream=False).json()
    for messages in ({"prompt": "tell me"}, {"messages": '[{"role": "user", "content": "tell me"}]'}):
        own = post_form(server, "smolvlm", IMAGES[:2], **messages).json()
        assert (own["text"], own["prompt_tokens"]) == (chat["message"]["content"], chat["prompt_eval_count"])


@pytest.mark.parametrize(
    ("model", "count", "texts", "field", "reason"),
    [
        ("bounded", 3, {"prompt": "a"}, "images", "expected at most 2 files, got 3"),
        ("blind", 1, {"prompt": "a"}, "images", "the model reads no images"),
        ("texts", 1, {"prompt": "a"}, "images", "the model reads no images"),
        ("smolvlm", 1, {}, "prompt", "expected prompt or messages, got none of them"),
        ("smolvlm", 1, {"messages": TWO_PLACES}, "images", "expected 2 files, one for each part"),
    ],
)
def test_wrong_form_is_refused_by_field(
    seeing: tuple[RunningServer, dict[str, Any]], model: str, count: int, texts: dict[str, str], field: str, reason: str
) -> None:
    server, _ = seeing
    answer = post_form(server, model, [IMAGES[0]] * count, **texts)
    assert_refused(answer, 400, "invalid_input", f"{field}: ", reason)


def test_damaged_file_of_form_is_named(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    answer = post_form(server, "smolvlm", [IMAGES[0], b"no image"], prompt="a")
    assert_refused(answer, 400, "invalid_input", "images[1]: expected a file in")


@pytest.mark.parametrize(
    ("model", "count", "more", "message"),
    [
        ("bounded", 3, {}, "messages: expected at most 2 images, got 3"),
        ("blind", 1, {}, "messages[0].content[0].image_url.url: expected only texts, as the model reads no images"),
        ("texts", 1, {}, "messages[0].content[0].image_url.url: expected only texts, as the model reads no images"),
        ("smolvlm", 1, {"text_input": "a"}, "messages: expected either text_input or messages, got both"),
        ("smolvlm", 1, {"messages": None}, "text_input: expected a string, got nothing"),
        ("smolvlm", 1, {"image": "YQ"}, "image: not supported; send messages with image_url parts"),
    ],
)
def test_generate_refuses_by_field(
    seeing: tuple[RunningServer, dict[str, Any]], model: str, count: int, more: dict[str, Any], message: str
) -> None:
    server, _ = seeing
    for path in ("generate", "generate_stream"):
        body = {"messages": [openai_message(count)], "max_tokens": 1, **more}
        answer = post(server, f"/v2/models/{model}/{path}", **body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"].startswith(message)
