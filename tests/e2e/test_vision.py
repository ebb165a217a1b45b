"""Images in conversations over a real socket: each protocol, their bounds, and what a model without vision answers."""

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import RunningServer, assert_refused
from tests.e2e.vision import TOKENS, openai_message, post, serving_vision
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, data_url, image

FAMILIES = ("smolvlm", "gemma3", "mllama")
"""By blocks, with images that see ahead, and by transformers' own caches."""
CALLERS = 8
WIDE = image(3, (400, 300))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, Any]]]:
    """A server, and the greedy texts of transformers' `generate` after 0 to 3 images, by model."""
    with serving_vision(tmp_path_factory.mktemp("seeing"), FAMILIES) as running:
        yield running


@contextmanager
def files_served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder; yield the URL of the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(folder))) as files:
        thread = threading.Thread(target=files.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{files.server_address[1]}"
        finally:
            files.shutdown()
            thread.join()


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def client(seeing: tuple[RunningServer, dict[str, Any]]) -> Iterator[openai.OpenAI]:
    server, _ = seeing
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("family", FAMILIES)
def test_concurrent_chats_equal_generate(
    seeing: tuple[RunningServer, dict[str, Any]], client: openai.OpenAI, family: str
) -> None:
    _, expected = seeing

    def answer(count: int) -> str:
        messages: Any = [openai_message(count)]
        chat = client.chat.completions.create(model=family, messages=messages, temperature=0, max_tokens=TOKENS)
        return str(chat.choices[0].message.content)

    counts = [number % 4 for number in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as threads:
        assert list(threads.map(answer, counts)) == [expected[family][count] for count in counts]


def test_separate_process_reads_images(seeing: tuple[RunningServer, dict[str, Any]], client: openai.OpenAI) -> None:
    _, expected = seeing
    messages: Any = [openai_message(3)]
    pieces = client.chat.completions.create(
        model="apart", messages=messages, temperature=0, max_tokens=TOKENS, stream=True
    )
    text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
    assert text == expected["smolvlm"][3]


def test_usage_counts_image_tokens(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    usages = []
    for count in (0, 1, 1):
        answer = post(server, "/v1/chat/completions", model="smolvlm", messages=[openai_message(count)], max_tokens=1)
        usages.append(answer.json()["usage"])
    assert usages[1]["prompt_tokens"] > usages[0]["prompt_tokens"] + 4
    assert usages[2]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("model", ["smolvlm", "apart", "mllama"])
def test_counts_equal_usage(seeing: tuple[RunningServer, dict[str, Any]], model: str, tmp_path: Path) -> None:
    server, _ = seeing
    (tmp_path / "a.png").write_bytes(IMAGES[0])
    with files_served(tmp_path) as url:
        message = openai_message(2)
        message["content"][0]["image_url"]["url"] = f"{url}/a.png"
        answer = post(server, "/v1/chat/completions", model=model, messages=[message], max_tokens=1)
        used = answer.json()["usage"]["prompt_tokens"]
        listed = post(server, "/v1/tokenize", model=model, messages=[message], return_token_strs=True).json()
        assert "count" in listed, listed
        assert listed["count"] == len(listed["tokens"]) == len(listed["token_strs"]) == used
        images = [
            {"type": "input_image", "image_url": part["image_url"]["url"]}
            if part["type"] == "image_url"
            else {"type": "input_text", "text": part["text"]}
            for part in message["content"]
        ]
        body = {"model": model, "input": [{"role": "user", "content": images}]}
        assert post(server, "/v1/responses/input_tokens", **body).json()["input_tokens"] == used
    blocks: list[Any] = []
    for part in message["content"]:
        data = base64.b64encode(IMAGES[len(blocks) // 2]).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        blocks.append(part if part["type"] == "text" else {"type": "image", "source": source})
    counted = post(server, "/v1/messages/count_tokens", model=model, messages=[{"role": "user", "content": blocks}])
    assert counted.json()["input_tokens"] == used


def test_responses_read_images(seeing: tuple[RunningServer, dict[str, Any]], client: openai.OpenAI) -> None:
    _, expected = seeing
    content: list[Any] = []
    for number, data in enumerate(IMAGES[:2]):
        content.append({"type": "input_image", "image_url": data_url(data), "detail": "auto"})
        content.append({"type": "input_text", "text": f"one {number}"})
    content.append({"type": "input_text", "text": " tell me"})
    answer = client.responses.create(
        model="smolvlm", input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=TOKENS
    )
    assert answer.output_text == expected["smolvlm"][2]


def test_messages_read_images(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, expected = seeing
    content: list[Any] = []
    for number, data in enumerate(IMAGES[:2]):
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
        content += [{"type": "image", "source": source}, {"type": "text", "text": f"one {number}"}]
    content.append({"type": "text", "text": " tell me"})
    messages = [{"role": "user", "content": content}]
    answer = post(server, "/v1/messages", model="smolvlm", messages=messages, temperature=0, max_tokens=TOKENS)
    assert answer.json()["content"][0]["text"] == expected["smolvlm"][2]


def test_native_reads_images(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, expected = seeing
    own = server.infer("smolvlm", messages=[openai_message(1)], temperature=0, max_tokens=TOKENS)
    assert own["text"] == expected["smolvlm"][1]


def test_ollama_reads_images(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    files = [base64.b64encode(IMAGES[0]).decode()]
    options = {"temperature": 0, "num_predict": TOKENS}
    message = {"role": "user", "content": "tell me", "images": files}
    chat = post(server, "/api/chat", model="smolvlm", messages=[message], options=options, stream=False).json()
    own = post(server, "/api/generate", model="smolvlm", prompt="tell me", images=files, options=options, stream=False)
    assert chat["message"]["content"] == own.json()["response"] != ""
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(IMAGES[0])}},
        {"type": "text", "text": "tell me"},
    ]
    same = server.infer("smolvlm", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=TOKENS)
    assert chat["message"]["content"] == same["text"]
    assert "vision" in post(server, "/api/show", model="smolvlm").json()["capabilities"]


@pytest.mark.parametrize(
    ("model", "files", "field", "reason"),
    [
        ("bounded", [IMAGES[0]] * 3, "messages", "expected at most 2 images, got 3"),
        ("smolvlm", [IMAGES[0]] * 200, "messages", "expected at most 16 images, got 200"),
        ("bounded", [WIDE], "messages[0].content[0].image_url.url", "expected at most 10000 pixels"),
        ("texts", [IMAGES[0]], "messages[0].content[0].image_url.url", "the model reads no images"),
        ("blind", [IMAGES[0]], "messages[0].content[0].image_url.url", "the model reads no images"),
        ("smolvlm", [b"no image"], "messages[0].content[0].image_url.url", "expected a file in"),
        ("smolvlm", [IMAGES[0][:200]], "messages[0].content[0].image_url.url", "got a damaged one"),
    ],
)
def test_bad_images_are_refused_by_field(
    seeing: tuple[RunningServer, dict[str, Any]], model: str, files: list[bytes], field: str, reason: str
) -> None:
    server, _ = seeing
    parts = [{"type": "image_url", "image_url": {"url": data_url(each)}} for each in files]
    answer = post(
        server, "/v1/chat/completions", model=model, messages=[{"role": "user", "content": parts}], max_tokens=1
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(f"{field}: "), answer.text
    assert reason in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:8080/metrics",
        "https://example.org/cat.png",
        "file:///etc/passwd",
    ],
)
def test_urls_are_never_fetched(seeing: tuple[RunningServer, dict[str, Any]], url: str) -> None:
    server, _ = seeing
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    answer = post(
        server, "/v1/chat/completions", model="smolvlm", messages=[{"role": "user", "content": parts}], max_tokens=1
    )
    assert answer.status_code == 400
    assert "the server fetches no URL" in answer.json()["error"]["message"]


def test_image_at_listed_host_is_fetched(seeing: tuple[RunningServer, dict[str, Any]], tmp_path: Path) -> None:
    server, expected = seeing
    (tmp_path / "a.png").write_bytes(IMAGES[0])
    with files_served(tmp_path) as base:
        message = openai_message(1)
        message["content"][0]["image_url"]["url"] = f"{base}/a.png"
        own = server.infer("smolvlm", messages=[message], temperature=0, max_tokens=TOKENS)
        assert own["text"] == expected["smolvlm"][1]
        body = {"messages": [message], "temperature": 0, "max_tokens": TOKENS}
        assert post(server, "/v2/models/smolvlm/generate", **body).json()["text_output"] == own["text"]
        message["content"][0]["image_url"]["url"] = f"{base}/absent.png"
        absent = post(server, "/v1/chat/completions", model="smolvlm", messages=[message], max_tokens=1)
        assert "got the status 404" in post(server, "/v2/models/smolvlm/generate", **body).text
    assert_refused(absent, 400, "invalid_input", "messages[0].content[0].image_url.url", "got the status 404")


def test_placeholder_in_text_is_refused(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    message = openai_message(1)
    message["content"].append({"type": "text", "text": "and <image> more"})
    answer = post(server, "/v1/chat/completions", model="smolvlm", messages=[message], max_tokens=1)
    assert_refused(answer, 400, "invalid_input", "expected <image> for each of 1 images in the prompt, got it 2 times")


def test_images_beyond_context_are_refused(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    parts = [{"type": "image_url", "image_url": {"url": data_url(WIDE)}}] * 16
    message = {"role": "user", "content": [*parts, {"type": "text", "text": "a" * 4000}]}
    answer = post(server, "/v1/chat/completions", model="smolvlm", messages=[message], max_tokens=1)
    assert answer.status_code == 400, answer.text
    assert "tokens" in answer.json()["error"]["message"]


def test_models_describe_vision(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, _ = seeing
    described = {each["name"]: each["vision"] for each in server.client.get("/models").json()["models"]}
    assert described["bounded"] == {
        "max_images": 2,
        "max_image_pixels": 10_000,
        "max_video_frames": 256,
        "max_video_seconds": 120,
        "no_videos_because": "transformers' processor of its videos needs torchvision, which is not installed",
    }
    assert described["blind"] is described["texts"] is None
    listed = {each["id"]: each["capabilities"] for each in server.client.get("/v1/models").json()["data"]}
    assert "vision" in listed["gemma3"]
    assert "vision" not in listed["texts"]


def test_blind_model_takes_less_memory(seeing: tuple[RunningServer, dict[str, Any]]) -> None:
    server, expected = seeing
    size = {each["name"]: each["memory_bytes"] for each in server.client.get("/models").json()["models"]}
    assert size["blind"] < size["smolvlm"]
    text = server.infer("blind", messages=[openai_message(0)], temperature=0, max_tokens=TOKENS)
    assert text["text"] == expected["smolvlm"][0]
