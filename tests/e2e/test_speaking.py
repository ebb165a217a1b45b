"""Text to speech on a real server: its own route, OpenAI's client, that of Hugging Face, and Triton's."""

import io
import json
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, get_args

import av
import httpx
import huggingface_hub
import numpy as np
import openai
import pytest
import torch
from huggingface_hub import InferenceClient
from transformers import VitsModel, VitsTokenizer

from frameworks.core.channel.channel import MAX_FRAME_BYTES
from frameworks.media.audio import decode_audio
from frameworks.media.encoding import SoundFormat
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, serving, wait_until
from tests.e2e.triton_clients import GRPC_KINDS, KINDS, grpc_tensor, http_tensor, triton_client
from tests.support.models.tasks.speaking import save_speaking_model

TEXT = "The engine waits in its shed."
SENTENCES = [f"The engine number {word} waits in its shed until the morning." for word in ("one", "two", "six") * 3]
LONG = " ".join(SENTENCES)
PARTS = [" ".join(SENTENCES[at : at + 2]) for at in range(0, 9, 2)]
"""Each is one run."""
RATE_HZ = 16_000
# Longest silence or padding that an encoder adds.
PADDING_S = {"mp3": 0.15, "opus": 0.03, "aac": 0.15, "flac": 0.0, "wav": 0.0, "pcm": 0.001}
TYPES = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip
FORMATS = get_args(SoundFormat)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "voice": save_speaking_model(tmp_path_factory.mktemp("voice")),
        "voices": save_speaking_model(tmp_path_factory.mktemp("voices"), num_speakers=3),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    entries = [
        ("voice", folders["voice"], "cache = true"),
        ("voices", folders["voices"], "instances = 2"),
        ("apart", folders["voices"], 'isolation = "process"'),
    ]
    text = "".join(f'[[models.torch_models]]\nname = "{n}"\npath = "{path}"\n{more}\n' for n, path, more in entries)
    with serving(tmp_path_factory.mktemp("server"), text, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@cache
def _loaded(folder: Path) -> tuple[Any, Any]:
    return VitsModel.from_pretrained(folder).eval(), VitsTokenizer.from_pretrained(folder)


def expected(folder: Path, text: str, seed: int, rate: float = 1.0, speaker: int | None = None) -> Any:
    """Return the samples of transformers' own model, float32 [samples]."""
    model, tokenizer = _loaded(folder)
    torch.manual_seed(seed)
    with torch.no_grad():
        outputs = model(**tokenizer(text, return_tensors="pt"), speaking_rate=rate, speaker_id=speaker)
    return outputs.waveform[0].numpy()


def spoken(prediction: Any) -> Any:
    assert prediction["sampling_rate"] == RATE_HZ
    return decode_audio(b64decode(prediction["audio"]), RATE_HZ, "audio")


def assert_same(found: Any, samples: Any) -> None:
    """The order of sums differs with the threads."""
    assert found.shape == samples.shape
    np.testing.assert_allclose(found, samples, rtol=0, atol=1e-5)


class TestInfer:
    def test_sound_equals_that_of_transformers(self, server: RunningServer, folders: dict[str, Path]) -> None:
        parameters = {"seed": 3, "speaking_rate": 1.5}
        [found] = server.infer("voice", text=TEXT, parameters=parameters)["predictions"]
        assert_same(spoken(found), expected(folders["voice"], TEXT, 3, 1.5))

    @pytest.mark.parametrize("model", ["voices", "apart"])
    def test_sixteen_callers_get_their_own_sounds(
        self, server: RunningServer, folders: dict[str, Path], model: str
    ) -> None:
        texts = [TEXT[: 8 + number] for number in range(16)]

        def ask(number: int) -> Any:
            parameters = {"seed": number, "speaker_id": number % 3}
            return server.infer(model, text=texts[number], parameters=parameters)["predictions"][0]

        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(ask, range(16)))
        for number, each in enumerate(found):
            assert_same(spoken(each), expected(folders["voices"], texts[number], number, speaker=number % 3))

    def test_only_sounds_with_seed_are_cached(self, server: RunningServer) -> None:
        def hits() -> float:
            return server.sample("roundhouse_cache_hits_total", model="voice")

        before = hits()
        random = [server.infer("voice", text=TEXT)["predictions"][0]["audio"] for _ in range(3)]
        assert len(set(random)) == 3
        assert hits() == before
        seeded = [server.infer("voice", text=TEXT, parameters={"seed": 8})["predictions"][0]["audio"] for _ in "ab"]
        assert seeded[0] == seeded[1]
        assert hits() == before + 1

    def test_texts_of_list_are_spoken_alone(self, server: RunningServer, folders: dict[str, Path]) -> None:
        texts = [TEXT, "two", LONG[:100]]
        found = server.infer("voice", text=texts, parameters={"seed": 4})["predictions"]
        for text, each in zip(texts, found, strict=True):
            assert_same(spoken(each), expected(folders["voice"], text, 4))

    @pytest.mark.parametrize("kind", [KINDS[0], GRPC_KINDS[0]])
    def test_triton_client_reads_sounds(self, server: RunningServer, folders: dict[str, Path], kind: str) -> None:
        tensor: Any = grpc_tensor if kind in GRPC_KINDS else http_tensor
        more = ("BYTES",) if kind in GRPC_KINDS else ()
        given = {"text": [TEXT, "two"], "parameters": ['{"seed": 2}']}
        with triton_client(server, kind) as triton:
            inputs = [tensor(name, np.array(value, dtype=object), *more) for name, value in given.items()]
            answer = triton.infer("voice", inputs)
        for text, each in zip(given["text"], answer.as_numpy("predictions"), strict=True):
            assert_same(spoken(json.loads(each)), expected(folders["voice"], text, 2))

    def test_client_of_hugging_face_gets_file(
        self, server: RunningServer, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        client = InferenceClient(model=f"{server.url}/models/voice", token="none")
        file = client.text_to_speech(TEXT, extra_body={"seed": 7})
        assert file[:4] == b"fLaC"
        found = decode_audio(file, RATE_HZ, "audio")
        # Integers of 16 bits.
        np.testing.assert_allclose(found, expected(folders["voice"], TEXT, 7).clip(-1, 1), rtol=0, atol=1e-4)


def speak(client: openai.OpenAI, text: str = TEXT, model: str = "voice", voice: str = "alloy", **options: Any) -> Any:
    extra = {name: options.pop(name) for name in ("seed", "priority") if name in options}
    return client.audio.speech.create(model=model, voice=voice, input=text, extra_body=extra, **options)


def samples_of(data: bytes, sound_format: str) -> tuple[Any, int]:
    """Return the samples and their rate in Hz, by FFmpeg."""
    if sound_format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32767, 24_000
    with av.open(io.BytesIO(data)) as container:
        rate_hz = container.streams.audio[0].rate
    return decode_audio(data, rate_hz, "audio"), rate_hz


class TestOpenAi:
    @pytest.mark.parametrize("sound_format", FORMATS)
    def test_file_of_format_lasts_as_long(
        self, client: openai.OpenAI, folders: dict[str, Path], sound_format: Any
    ) -> None:
        answer = speak(client, seed=5, response_format=sound_format)
        assert answer.response.headers["content-type"] == TYPES[sound_format]
        samples, rate_hz = samples_of(answer.content, sound_format)
        ours = expected(folders["voice"], TEXT, 5)
        seconds = len(ours) / RATE_HZ
        assert -0.001 <= len(samples) / rate_hz - seconds <= PADDING_S[sound_format]
        # The loudness too: a silent file has the right length.
        loudness, right = float(np.std(samples)), float(np.std(ours))
        assert loudness * (len(samples) / rate_hz / seconds) ** 0.5 == pytest.approx(right, rel=0.25)

    def test_default_format_is_mp3(self, client: openai.OpenAI) -> None:
        answer = speak(client)
        assert answer.response.headers["content-type"] == "audio/mpeg"
        assert answer.response.headers["x-roundhouse-ignored"] == "voice"
        assert samples_of(answer.content, "mp3")[1] == RATE_HZ

    def test_speed_and_voice_reach_the_model(self, client: openai.OpenAI, folders: dict[str, Path]) -> None:
        answer = speak(client, model="voices", voice="2", seed=6, speed=2.0, response_format="wav")
        assert "x-roundhouse-ignored" not in answer.response.headers
        right = expected(folders["voices"], TEXT, 6, 2.0, 2)
        np.testing.assert_allclose(samples_of(answer.content, "wav")[0], right.clip(-1, 1), rtol=0, atol=1e-4)

    @pytest.mark.parametrize("model", ["voices", "apart"])
    def test_sentences_are_joined_in_order(self, client: openai.OpenAI, folders: dict[str, Path], model: str) -> None:
        found = speak(client, LONG, model, "1", seed=6, response_format="wav").content
        right = [expected(folders["voices"], part, 6, speaker=1) for part in PARTS]
        assert len(right) > 3
        samples = np.concatenate(right).clip(-1, 1)
        np.testing.assert_allclose(samples_of(found, "wav")[0], samples, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("sound_format", FORMATS)
    def test_events_have_the_same_file(self, client: openai.OpenAI, sound_format: Any) -> None:
        whole = speak(client, LONG, seed=6, response_format=sound_format).content
        options = {"model": "voice", "voice": "alloy", "input": LONG, "extra_body": {"seed": 6}}
        with client.audio.speech.with_streaming_response.create(
            **options, response_format=sound_format, stream_format="sse"
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        *deltas, done = [json.loads(line) for line in lines]
        assert {each["type"] for each in deltas} == {"speech.audio.delta"}
        usage = {"input_tokens": len(LONG), "output_tokens": 0, "total_tokens": len(LONG)}
        assert done == {"type": "speech.audio.done", "usage": usage}
        assert len(deltas) >= len(PARTS) - 1
        streamed, rate_hz = samples_of(b"".join(b64decode(each["audio"]) for each in deltas), sound_format)
        samples, _ = samples_of(whole, sound_format)
        assert abs(len(streamed) - len(samples)) / rate_hz <= PADDING_S[sound_format]
        if sound_format in ("wav", "flac"):
            np.testing.assert_array_equal(streamed, samples)

    def test_error_after_first_sentence_is_an_event(self, server: RunningServer) -> None:
        body = {
            "model": "voice",
            "voice": "alloy",
            "input": PARTS[0] + " " + "\u4f60\u597d" * 60,
            "response_format": "wav",
        }
        whole = server.client.post("/v1/audio/speech", json=body)
        assert whole.status_code == 400, whole.text
        streamed = server.client.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
        events = [json.loads(line.removeprefix("data: ")) for line in streamed.text.splitlines() if line]
        assert [each.get("type", "error") for each in events] == ["speech.audio.delta", "error"]
        assert "expected characters that the model speaks" in events[1]["error"]["message"]

    @pytest.mark.parametrize("stream_format", ["audio", "sse"])
    def test_deadline_ends_the_request(self, server: RunningServer, stream_format: str) -> None:
        body = {"model": "voices", "voice": "0", "input": LONG * 7, "timeout_ms": 30, "stream_format": stream_format}
        answer = server.client.post("/v1/audio/speech", json=body)
        assert answer.status_code == 504 or "deadline_exceeded" in answer.text.splitlines()[-2], answer.text[-300:]

    def test_reader_that_leaves_stops_the_model(self, server: RunningServer, client: openai.OpenAI) -> None:
        before = server.sample("roundhouse_batch_size_count", model="voice")
        options = {"model": "voice", "voice": "alloy", "input": LONG * 7, "response_format": "wav"}
        with client.audio.speech.with_streaming_response.create(**options, stream_format="sse") as answer:
            assert "speech.audio.delta" in next(answer.iter_lines())
        wait_until(lambda: server.sample("roundhouse_inflight", model="voice") == 0)
        assert server.sample("roundhouse_batch_size_count", model="voice") - before < 7 * len(PARTS) - 5

    @pytest.mark.extended
    def test_sound_beyond_one_message_is_answered(self, client: openai.OpenAI) -> None:
        text = (" ".join(SENTENCES) * 9)[:4096]
        found = speak(client, text, "apart", "0", seed=6, response_format="pcm").content
        # As float32 at the rate of the model, in base64.
        assert len(found) / 2 / 24_000 * RATE_HZ * 4 * 4 / 3 > MAX_FRAME_BYTES

    def test_first_event_precedes_last_sentence(self, server: RunningServer, client: openai.OpenAI) -> None:
        before = server.sample("roundhouse_batch_size_count", model="voice")
        options = {"model": "voice", "voice": "alloy", "input": LONG, "response_format": "wav"}
        with client.audio.speech.with_streaming_response.create(**options, stream_format="sse") as answer:
            lines = answer.iter_lines()
            assert "speech.audio.delta" in next(lines)
            for _ in lines:
                pass
        assert server.sample("roundhouse_batch_size_count", model="voice") - before == len(PARTS)


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"input": "a" * 4097}, "input: expected a string of 1 to 4096 characters, got 4097 characters"),
            ({"input": ""}, "input: expected a string of 1 to 4096 characters"),
            ({"input": " \n "}, "input: expected characters that the model speaks"),
            ({"input": "\u4f60\u597d"}, "input: expected characters that the model speaks"),
            ({"input": None}, "input: expected"),
            ({"input": 3}, "input: expected"),
            ({"input": ["a"]}, "input: expected"),
            ({"speed": 4.5}, "speed: expected a number from 0.25 to 4.0, got 4.5"),
            ({"speed": "fast"}, "speed: expected"),
            ({"response_format": "ogg"}, 'response_format: expected "mp3" or "opus"'),
            ({"stream_format": "events"}, 'stream_format: expected "audio" or "sse"'),
            ({"instructions": "Whisper."}, "instructions: expected"),
            ({"stream": True}, "stream_format"),
            ({"voices": "alloy"}, "voice"),
            ({"seed": -1}, "seed: expected"),
            ({"model": "voices", "voice": "alloy"}, 'voice: expected the number of a speaker as text, from "0" to "2"'),
            ({"model": "voices", "voice": "3"}, 'got "3"'),
            ({"model": "voices", "voice": "\u0663"}, "voice: expected the number"),
            ({"model": "voices", "voice": None}, "got nothing"),
            ({"model": "voices", "voice": {"id": "9" * 200}}, "voice: expected"),
        ],
    )
    def test_wrong_field_is_named(self, server: RunningServer, body: dict[str, Any], message: str) -> None:
        answer = server.client.post(
            "/v1/audio/speech", json={"model": "voice", "voice": "alloy", "input": TEXT, **body}
        )
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]["message"]

    def test_empty_instructions_are_accepted(self, client: openai.OpenAI) -> None:
        assert speak(client, instructions="").content

    def test_sound_that_is_too_long_is_refused(self, server: RunningServer) -> None:
        answer = server.client.post(
            "/models/voice/infer", json={"text": (TEXT * 25)[:600], "parameters": {"speaking_rate": 0.1}}
        )
        assert_refused(answer, 400, "invalid_input", "text: expected speech of at most 60 seconds")
        # The model still answers.
        assert server.infer("voice", text=TEXT)["predictions"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"text": "a" * 601}, "text: expected at most 600 characters"),
            ({"text": ["a"] * 65}, "expected 1 to 64 inputs, got 65"),
            ({"text": ["a" * 600] * 9}, "text: expected at most 4800 characters in all, got 5400"),
            ({"text": ["a", "\u4f60"]}, "text[1]: expected characters that the model speaks"),
            ({"text": TEXT, "parameters": {"speaker_id": 0}}, "parameters.speaker_id"),
            ({"text": TEXT, "parameters": {"speaking_rate": 0}}, "parameters.speaking_rate: expected a number"),
            ({"text": TEXT, "parameters": {"do_sample": True}}, "parameters.do_sample"),
        ],
    )
    def test_wrong_input_of_infer_is_refused(self, server: RunningServer, body: dict[str, Any], message: str) -> None:
        answer = server.client.post("/models/voice/infer", json=body)
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]["message"]


@pytest.mark.extended
def test_workers_share_only_sounds_with_seed(folders: dict[str, Path], tmp_path: Path) -> None:
    text = f'[server]\nworkers = 2\n[[models.torch_models]]\nname = "voice"\npath = "{folders["voice"]}"\n'
    with serving(tmp_path, text + 'cache = true\nisolation = "process"\n') as server:
        server.wait_ready()

        def sound(number: int, **parameters: Any) -> Any:
            # Each from a connection of its own, so that both workers answer.
            answer = httpx.post(
                f"{server.url}/models/voice/infer", json={"text": TEXT, "parameters": parameters}, timeout=60
            )
            assert answer.status_code == 200, answer.text[:500]
            return answer.json()["predictions"][0]["audio"]

        assert len({sound(number) for number in range(8)}) == 8
        assert len({sound(number, seed=5) for number in range(8)}) == 1
        file = httpx.post(f"{server.url}/v1/audio/speech", json={"model": "voice", "input": LONG}, timeout=60)
        assert file.headers["content-type"] == "audio/mpeg"
        server.check_log()
