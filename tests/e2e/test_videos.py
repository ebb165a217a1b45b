"""Videos in conversations over a real socket, of a server with torchvision."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import WAIT_S, RunningServer, assert_refused
from tests.e2e.test_vision import files_served
from tests.e2e.vision import TOKENS, post
from tests.frameworks.pytorch.generation.vision.seeing_videos import VIDEOS, show_videos
from tests.frameworks.pytorch.generation.vision.test_torchvision import PROGRAM, environment, printed
from tests.support.models.vision.catalogue import MAKERS

_URL = "data:video/mp4;base64," + base64.b64encode(VIDEOS[0]).decode()
_ENTRY = '[[models.torch_models]]\nname = "{}"\npath = "{}"\ndtype = "f32"\nmax_batch_size = 4\n{}\n'


def _message(url: str = _URL) -> dict[str, Any]:
    """Return the first conversation of seeing_videos."""
    return {
        "role": "user",
        "content": [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "one 0"}],
    }


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server with torchvision, and the greedy text of transformers' `generate` after a video."""
    folder = tmp_path_factory.mktemp("videos")
    model = folder / "qwen"
    model.mkdir()
    MAKERS["qwen2_vl"](model)
    show_videos(model)
    [text] = json.loads(printed("texts", str(model))[-1])
    config = folder / "config.toml"
    entries = _ENTRY.format("qwen", model, "")
    entries += _ENTRY.format("short", model, "max_video_seconds = 2") + _ENTRY.format(
        "few", model, "max_video_frames = 8"
    )
    config.write_text(f'{entries}[server]\nmedia_hosts = ["127.0.0.0/8"]\n', encoding="utf-8")
    variables = environment() | {"XDG_CACHE_HOME": str(folder / "caches")}
    with RunningServer(["--config", str(config), "--port", "0"], variables, program=PROGRAM) as server:
        yield server.wait_ready(), text
        server.check_log()


@pytest.mark.extended
def test_chat_with_video_equals_generate(seeing: tuple[RunningServer, str]) -> None:
    server, expected = seeing
    messages: Any = [_message()]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S) as client:
        for _ in range(2):  # the second time from the caches
            chat = client.chat.completions.create(model="qwen", messages=messages, temperature=0, max_tokens=TOKENS)
            assert chat.choices[0].message.content == expected
        pieces = client.chat.completions.create(
            model="qwen", messages=messages, temperature=0, max_tokens=TOKENS, stream=True
        )
        assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices) == expected


@pytest.mark.extended
def test_video_by_url_equals_generate(seeing: tuple[RunningServer, str], tmp_path: Path) -> None:
    server, expected = seeing
    (tmp_path / "a.mp4").write_bytes(VIDEOS[0])
    with files_served(tmp_path) as url:
        body = post(
            server, "/infer", model_name="qwen", messages=[_message(f"{url}/a.mp4")], temperature=0, max_tokens=8
        )
    assert body.json()["text"] == expected


@pytest.mark.extended
@pytest.mark.parametrize(
    ("model", "url", "message"),
    [
        ("short", _URL, "expected at most 2 seconds of video, got 4"),
        ("few", _URL, "expected at most 8 frames of all videos, got 32"),
        (
            "qwen",
            "data:video/mp4;base64,AAAA",
            "expected a file in MP4 or MOV, WebM or Matroska, AVI or Ogg, got other bytes",
        ),
    ],
)
def test_video_beyond_bounds_is_refused(seeing: tuple[RunningServer, str], model: str, url: str, message: str) -> None:
    server, _ = seeing
    response = post(server, "/infer", model_name=model, messages=[_message(url)])
    assert_refused(response, 400, "invalid_input", "messages[0].content[0].video_url.url", message)


@pytest.mark.extended
def test_models_show_bounds_of_videos(seeing: tuple[RunningServer, str]) -> None:
    server, _ = seeing
    found = {each["name"]: each["vision"] for each in server.client.get("/models").json()["models"]}
    assert found["short"]["max_video_seconds"] == 2
    assert found["few"]["max_video_frames"] == 8
    assert found["qwen"]["no_videos_because"] is None
