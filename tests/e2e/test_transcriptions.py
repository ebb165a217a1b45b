"""Speech to text as OpenAI has it, by its own client, of a model of Whisper and of a CTC model."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.server import WAIT_S, RunningServer, check_error, serving
from tests.support.media import changing_tones, encoded_audio, tone, wav
from tests.support.models.encoder_decoder_folders import save_encoder_decoder
from tests.support.models.tasks.speech import save_speech_model
from tests.support.models.tasks.whisper import save_whisper

FILE = ("speech.wav", changing_tones(5.2, 1))
MODELS = ("whisper", "ctc")
OF_ROUTE = {
    "compression_ratio_threshold": 2.4,
    "logprob_threshold": -1.0,
    "no_speech_threshold": 0.6,
    "temperature": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
    "return_timestamps": True,
    "seed": 0,
}
"""The parameters of /infer for which the route of OpenAI stands."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "ctc").mkdir()
    entries = [
        ("whisper", save_whisper(folder / "whisper")),
        ("ctc", save_speech_model(folder / "ctc", "wav2vec2")),
        ("bart", save_encoder_decoder(folder / "bart", "BartForConditionalGeneration")),
    ]
    text = "".join(f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\n' for name, path in entries)
    with serving(folder, text) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)


def native(server: RunningServer, model: str, **parameters: Any) -> Any:
    """The prediction of /infer."""
    files = {"audio": FILE[1]}
    data = {"parameters": json.dumps(parameters)}
    return httpx.post(f"{server.url}/models/{model}/infer", files=files, data=data, timeout=WAIT_S).json()[
        "predictions"
    ][0]


@pytest.mark.parametrize("model", MODELS)
def test_client_reads_text_in_json(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    found = client.audio.transcriptions.create(model=model, file=FILE)
    parameters = OF_ROUTE | {"task": "transcribe"} if model == "whisper" else {"chunk_length_s": 30}
    assert found.text == native(server, model, **parameters)["text"].strip()
    assert found.text
    usage: Any = found.usage
    assert (usage.type, usage.seconds) == ("duration", 6)


@pytest.mark.parametrize("model", MODELS)
def test_verbose_json_has_segments_and_words(client: openai.OpenAI, model: str) -> None:
    found = client.audio.transcriptions.create(
        model=model, file=FILE, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert math.isclose(found.duration, 5.2)
    assert found.segments
    assert found.words
    for parts in (found.segments, found.words):
        assert all(each.start <= each.end for each in parts)
    assert "".join("".join(each.text.split()) for each in found.segments) == "".join(found.text.split())
    assert "".join(each.word for each in found.words) == "".join(found.text.split())


@pytest.mark.parametrize("model", MODELS)
def test_subtitles_have_the_times_of_segments(client: openai.OpenAI, model: str) -> None:
    given: Any = {"model": model, "file": FILE}
    verbose = client.audio.transcriptions.create(**given, response_format="verbose_json")
    subrip = client.audio.transcriptions.create(**given, response_format="srt")
    webvtt = client.audio.transcriptions.create(**given, response_format="vtt")
    plain = client.audio.transcriptions.create(**given, response_format="text")
    assert plain == f"{verbose.text}\n"
    assert str(subrip).count(" --> ") == len(verbose.segments) == str(webvtt).count(" --> ")
    assert str(webvtt).startswith("WEBVTT\n\n00:00:0")
    assert str(subrip).startswith("1\n00:00:0")


def test_options_of_whisper_change_its_text(server: RunningServer, client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        model="whisper",
        file=FILE,
        language="de",
        prompt="words before",
        temperature=0.4,
        response_format="verbose_json",
    )
    assert found.language == "de"
    assert {each.temperature for each in found.segments or ()} == {0.4}


@pytest.mark.filterwarnings("ignore:deprecated")
def test_translation_is_that_of_the_task(server: RunningServer, client: openai.OpenAI) -> None:
    found = client.audio.translations.create(model="whisper", file=FILE)
    assert found.text == native(server, "whisper", task="translate", **OF_ROUTE)["text"].strip()


@pytest.mark.parametrize(
    ("container", "codec"),
    [("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame"), ("mp4", "aac"), ("webm", "libopus")],
)
def test_file_of_each_container_is_read(client: openai.OpenAI, container: str, codec: str) -> None:
    rate = 48_000 if codec == "libopus" else 16_000
    file = encoded_audio(tone(rate, rate=rate), container, codec, rate)
    assert client.audio.transcriptions.create(model="whisper", file=(f"a.{container}", file)).text is not None


FORMS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {"model": "whisper"}, "file", "got none"),
    ({"file": b""}, {"model": "whisper"}, "file", "empty"),
    ({"file": FILE[1][:30]}, {"model": "whisper"}, "file", "audio"),
    ({"file": b"words" * 100}, {"model": "ctc"}, "file", "other bytes"),
    ({"file": FILE[1]}, {"model": "bart"}, "model", "automatic-speech-recognition"),
    ({"file": FILE[1]}, {"model": "whisper", "languag": "de"}, "languag", "unknown"),
    ({"file": FILE[1]}, {"model": "whisper", "language": "xx"}, "language", "one of"),
    ({"file": FILE[1]}, {"model": "whisper", "temperature": "warm"}, "temperature", "number"),
    ({"file": FILE[1]}, {"model": "whisper", "temperature": "3"}, "temperature", "1"),
    ({"file": FILE[1]}, {"model": "whisper", "response_format": "xml"}, "response_format", "verbose_json"),
    ({"file": FILE[1]}, {"model": "whisper", "timestamp_granularities[]": "word"}, "timestamp_gr", "verbose_json"),
    ({"file": FILE[1]}, {"model": "whisper", "stream": "true"}, "stream", "false"),
    ({"file": FILE[1]}, {"model": "ctc", "prompt": "words"}, "prompt", "none"),
    ({"file": FILE[1]}, {"model": "ctc", "temperature": "0.5"}, "temperature", "0"),
    ({"file": FILE[1]}, {"model": ["whisper", "ctc"]}, "model", "two"),
]


@pytest.mark.parametrize(("files", "data", "field", "word"), FORMS)
def test_wrong_form_is_refused(
    server: RunningServer, files: dict[str, Any], data: dict[str, Any], field: str, word: str
) -> None:
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files=files or {"user": (None, b"a")}, data=data, timeout=WAIT_S
    )
    assert answer.status_code == 400, answer.text
    check_error(answer)
    message = answer.json()["error"]["message"]
    if files:
        assert message.startswith(field), message
        assert word in message, message


def test_unknown_model_of_speech_is_not_found(server: RunningServer) -> None:
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", files={"file": FILE[1]}, data={"model": "absent"}, timeout=WAIT_S
    )
    assert answer.status_code == 404
    assert "absent" in answer.text


def test_json_instead_of_a_form_is_refused(server: RunningServer) -> None:
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", json={"model": "whisper"}, timeout=WAIT_S)
    assert answer.status_code == 415
    assert "multipart/form-data" in answer.text


def test_language_of_ctc_model_is_ignored(server: RunningServer) -> None:
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        files={"file": FILE[1]},
        data={"model": "ctc", "language": "de"},
        timeout=WAIT_S,
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-roundhouse-ignored"] == "language"


def test_ctc_model_translates_nothing(server: RunningServer) -> None:
    answer = httpx.post(
        f"{server.url}/v1/audio/translations", files={"file": FILE[1]}, data={"model": "ctc"}, timeout=WAIT_S
    )
    assert answer.status_code == 400
    assert "translates" in answer.text


def test_sound_above_a_minute_is_cut_for_ctc(client: openai.OpenAI) -> None:
    file = wav(tone(70 * 16_000))
    found = client.audio.transcriptions.create(model="ctc", file=("long.wav", file), response_format="verbose_json")
    assert math.isclose(found.duration, 70)
