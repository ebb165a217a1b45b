"""Speech to text on a real server, by its own route and the client of Hugging Face."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import pytest
import transformers
from huggingface_hub import InferenceClient

from frameworks.media.audio import decode_audio
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving
from tests.e2e.triton_clients import GRPC_KINDS, KINDS, grpc_tensor, http_tensor, triton_client
from tests.support.models.tasks.inputs import sounds, wav
from tests.support.models.tasks.speech import save_speech_model

FILES = [wav(wave) for wave in sounds()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_speech_model(tmp_path_factory.mktemp("speech"), "wav2vec2")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text = f'[[models.torch_models]]\nname = "speech"\npath = "{folder}"\n'
    with serving(tmp_path_factory.mktemp("server"), text, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def expected(folder: Path, **parameters: Any) -> list[Any]:
    pipeline: Any = transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")
    answers = [pipeline(decode_audio(file, 16_000, "audio"), **parameters) for file in FILES]
    found: list[Any] = json.loads(json.dumps(answers))
    return found


def test_infer_answers_texts_and_words(server: RunningServer, folder: Path) -> None:
    audio = [b64encode(file).decode() for file in FILES]
    options = {"return_timestamps": "word", "chunk_length_s": 1.0}
    found = server.infer("speech", audio=audio, parameters=options)
    assert found["predictions"] == expected(folder, **options)


def test_client_of_hugging_face_reads_text(
    server: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(model=f"{server.url}/models/speech", token="none")
    [first, *_] = expected(folder)
    assert client.automatic_speech_recognition(FILES[0]).text == first["text"]


@pytest.mark.parametrize("kind", [KINDS[0], GRPC_KINDS[0]])
def test_triton_client_reads_texts_of_files(server: RunningServer, folder: Path, kind: str) -> None:
    tensor: Any = grpc_tensor if kind in GRPC_KINDS else http_tensor
    more = ("BYTES",) if kind in GRPC_KINDS else ()
    with triton_client(server, kind) as triton:
        answer = triton.infer("speech", [tensor("audio", np.array(FILES, dtype=object), *more)])
    assert [json.loads(each) for each in answer.as_numpy("predictions")] == expected(folder)


def test_unknown_parameter_of_speech_is_refused(server: RunningServer) -> None:
    body = {"audio": b64encode(FILES[0]).decode(), "parameters": {"return_timestamp": "word"}}
    answer = httpx.post(f"{server.url}/models/speech/infer", json=body)
    assert answer.status_code == 400
    assert "return_timestamps" in answer.text


def test_truncated_sound_is_refused(server: RunningServer) -> None:
    answer = httpx.post(
        f"{server.url}/models/speech/infer", content=FILES[0][:30], headers={"content-type": "audio/wav"}
    )
    assert answer.status_code == 400, answer.text
    assert "audio" in answer.text
