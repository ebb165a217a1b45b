"""The embedded model that sees, over a real socket: one picture, several, none."""

import base64
import io
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from app.embedded.copy_tiny_vision import EXAMPLE
from tests.e2e.server import MODELS, WAIT_S, RunningServer, serving
from tools.training import tiny_vision_talks as talks
from tools.training.tiny_vision_tower import Pictures, pictures_of

NAME = "tiny-vision"
COUNT = 40
MIN_RIGHT = 0.9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    entry = f'[[models.torch_models]]\nname = "{NAME}"\npath = "{MODELS / NAME}"\n'
    with serving(tmp_path_factory.mktemp(NAME), entry) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def shown(data: bytes, kind: str = "png") -> dict[str, Any]:
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def file_of(pictures: Pictures, index: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pictures.pixels[index]).save(file, "PNG")
    return file.getvalue()


def answered(client: openai.OpenAI, *parts: dict[str, Any]) -> str:
    """Return the answer with the sampling of the folder, which is greedy."""
    messages: Any = [{"role": "user", "content": [*parts]}]
    chat = client.chat.completions.create(model=NAME, messages=messages)
    assert chat.choices[0].finish_reason == "stop"
    return str(chat.choices[0].message.content)


def test_example_is_a_red_star(server: RunningServer) -> None:
    parts = [shown((MODELS / NAME / EXAMPLE).read_bytes(), "jpeg"), {"type": "text", "text": "What is this?"}]
    body = {"model": NAME, "messages": [{"role": "user", "content": parts}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT_S, trust_env=False)
    assert answer.json()["choices"][0]["message"]["content"] == "A red star."


def test_form_of_curl_is_answered(server: RunningServer) -> None:
    curl = ["curl", "-sfN", "--noproxy", "*", f"{server.url}/models/{NAME}/infer", "-F", "prompt=What is this?"]
    curl += ["-F", f"images=@{MODELS / NAME / EXAMPLE}"]
    answer = json.loads(subprocess.run(curl, capture_output=True, check=True, timeout=WAIT_S).stdout)
    assert (answer["text"], answer["finish_reason"]) == ("A red star.", "stop")


def test_unseen_pictures_are_named(client: openai.OpenAI) -> None:
    pictures, right = pictures_of(COUNT, 78), 0
    for index in range(COUNT):
        told = answered(client, shown(file_of(pictures, index)), {"type": "text", "text": "Describe the picture."})
        right += told == talks.answer("both", [pictures.name(index)])
    assert right >= MIN_RIGHT * COUNT


def test_pictures_are_named_in_order(client: openai.OpenAI) -> None:
    pictures, right = pictures_of(COUNT, 79), 0
    for first in range(0, COUNT, 2):
        pair = (first, first + 1)
        files = (shown(file_of(pictures, index)) for index in pair)
        told = answered(client, *files, {"type": "text", "text": "What are these?"})
        right += told == talks.answer("both", [pictures.name(index) for index in pair])
    assert right >= MIN_RIGHT * COUNT / 2


def test_text_alone_is_answered(client: openai.OpenAI) -> None:
    assert answered(client, {"type": "text", "text": "What is this?"}) == talks.NO_PICTURE
