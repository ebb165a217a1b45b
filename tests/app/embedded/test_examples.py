"""Curl lines for the embedded models: valid shell and JSON."""

import json
import shlex

import pytest

from app.embedded import examples


def test_curl_lines_are_valid_shell_and_json() -> None:
    health, image, sound, picture, *requests, call = [
        shlex.split(line) for line in examples.curl_lines("127.0.0.1", 8080)
    ]
    assert health == ["curl", "-s", "http://127.0.0.1:8080/health"]
    assert image[-2:] == ["--data-binary", "@models/shapes/example.jpg"]
    assert sound[-2:] == ["--data-binary", "@models/sounds/example.wav"]
    assert json.loads(picture[1] % "AA==")["model"] == "tiny-vision"
    assert picture[2] == "$(base64 models/tiny-vision/example.jpg | tr -d '\\n')"
    assert picture[3:6] == ["|", "curl", "-s"]
    bodies = [json.loads(line[line.index("-d") + 1]) for line in requests]
    names = ["minilm", "minilm-onnx", "digits", "digits", "names", "tiny-llama", "tiny-llama"]
    assert [body["model_name"] for body in bodies] == names
    assert len(bodies[2]["input_data"]) == 64
    assert all(line[2] == "http://127.0.0.1:8080/infer" for line in requests)
    assert call[2] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(call[call.index("-d") + 1])["tools"][0]["function"]["name"] == "weather"


def test_main_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert examples.main(["--port", "81"]) == 0
    assert capsys.readouterr().out.splitlines() == examples.curl_lines("127.0.0.1", 81)
