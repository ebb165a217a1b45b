"""Speech read by models that write its text token by token, over a real socket, as transformers computes it."""

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import transformers
from huggingface_hub import InferenceClient

from frameworks.media.audio import decode_audio
from tests.e2e.server import WAIT_S, RunningServer, serving, wait_until
from tests.support.media import changing_tones
from tests.support.models.tasks.whisper import LANGUAGES, SAMPLING_RATE, save_whisper

WINDOW_S = 3
SECONDS = (0.4, 1.7, 2.9, 3.0, 5.2, 7.5, 11.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper") / "m")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    entry = f'''
[[models.torch_models]]
name = "whisper"
path = "{folder}"
cache = true

[[models.torch_models]]
name = "apart"
path = "{folder}"
isolation = "process"

[[models.torch_models]]
name = "int8"
path = "{folder}"
dtype = "int8"
min_cosine = 0.5
'''
    with serving(folder.parent, entry) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    return transformers.pipeline("automatic-speech-recognition", model=str(folder), device="cpu")


def expected(pipeline: Any, file: bytes, **options: Any) -> Any:
    """The prediction of transformers, whose pipeline has a beam search by default."""
    samples = decode_audio(file, SAMPLING_RATE, "audio")
    generate = {"num_beams": 1, **options.pop("generate_kwargs", {})}
    return json.loads(json.dumps(pipeline(samples, generate_kwargs=generate, **options)))


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("returned", [False, True, "word"])
@pytest.mark.parametrize("seconds", SECONDS)
def test_sound_read_as_by_transformers(
    server: RunningServer, pipeline: Any, seconds: float, returned: bool | str
) -> None:
    file = changing_tones(seconds, 1)
    found = server.infer("whisper", audio=b64encode(file).decode(), parameters={"return_timestamps": returned})
    wanted = expected(pipeline, file, return_timestamps=returned or seconds > WINDOW_S)
    if not returned:
        wanted.pop("chunks", None)
    assert found["predictions"] == [wanted]


OPTIONS = (
    {"language": "de", "task": "translate"},
    {"num_beams": 3},
    {"condition_on_prev_tokens": True},
    {"compression_ratio_threshold": 1.1},
    {"logprob_threshold": -1.5, "temperature": 0.0},
    {"no_speech_threshold": 1e-4, "logprob_threshold": -2.0, "temperature": 0.0},
    {"max_new_tokens": 9},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_option_changes_text_as_in_transformers(server: RunningServer, pipeline: Any, options: dict[str, Any]) -> None:
    file = changing_tones(7.5, 2)
    parameters = {"return_timestamps": True, **options}
    found = server.infer("whisper", audio=b64encode(file).decode(), parameters=parameters)
    assert found["predictions"] == [expected(pipeline, file, return_timestamps=True, generate_kwargs=options)]


def test_windows_side_by_side_equal_transformers(server: RunningServer, pipeline: Any) -> None:
    file = changing_tones(11.3, 3)
    options = {"chunk_length_s": 2.5, "stride_length_s": 0.4, "return_timestamps": True}
    found = server.infer("whisper", audio=b64encode(file).decode(), parameters=options)
    assert found["predictions"] == [expected(pipeline, file, **options)]


def test_sixteen_sounds_at_once_equal_transformers(server: RunningServer, pipeline: Any) -> None:
    files = [changing_tones(0.5 + 0.45 * number, number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda file: server.infer("whisper", audio=b64encode(file).decode()), files))
    wanted = [expected(pipeline, file, return_timestamps=len(file) > 2 * SAMPLING_RATE * WINDOW_S) for file in files]
    assert [each["predictions"][0]["text"] for each in found] == [each["text"] for each in wanted]


@pytest.mark.parametrize("model", ["apart", "int8"])
def test_model_reads_sound_in_other_ways(server: RunningServer, pipeline: Any, model: str) -> None:
    file = changing_tones(5.2, 4)
    parameters = {"return_timestamps": True, "return_segments": True, "language": "en"}
    [found] = server.infer(model, audio=b64encode(file).decode(), parameters=parameters)["predictions"]
    assert found["language"] == "en"
    assert [each["text"] for each in found["segments"]]
    if model == "apart":
        generate = {"language": "en"}
        wanted = expected(pipeline, file, return_timestamps=True, generate_kwargs=generate)
        assert {name: found[name] for name in wanted} == wanted


def test_rejected_text_is_sampled_again(server: RunningServer) -> None:
    given = {"audio": b64encode(changing_tones(2.9, 5)).decode()}
    options = {"logprob_threshold": -0.001, "temperature": [0.0, 0.7, 0.9], "return_segments": True, "seed": 3}
    found = [server.infer("whisper", **given, parameters=options)["predictions"][0]["segments"] for _ in range(2)]
    assert found[0] == found[1]
    assert {each["temperature"] for each in found[0]} == {0.9}
    likely = server.infer("whisper", **given, parameters=options | {"logprob_threshold": -900})
    assert {each["temperature"] for each in likely["predictions"][0]["segments"]} == {0.0}


def test_segments_have_their_scores(server: RunningServer) -> None:
    given = {"audio": b64encode(changing_tones(7.5, 6)).decode(), "parameters": {"return_segments": True}}
    [found] = server.infer("whisper", **given)["predictions"]
    assert found["language"] in LANGUAGES
    for segment in found["segments"]:
        assert 0 <= segment["start"] <= segment["end"] <= 9
        assert segment["avg_logprob"] < 0
        assert 0 < segment["no_speech_prob"] < 1
        assert segment["compression_ratio"] > 0
    assert "".join(each["text"] for each in found["segments"]).split() == found["text"].split()


def test_client_of_hugging_face_reads_parts(
    server: RunningServer, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(model=f"{server.url}/models/whisper", token="none")
    file = changing_tones(1.7, 7)
    assert client.automatic_speech_recognition(file).text == expected(pipeline, file)["text"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"language": "xx"}, "parameters.language"),
        ({"task": "summarize"}, "parameters.task"),
        ({"return_timestamps": "char"}, "parameters.return_timestamps"),
        ({"temperature": [0] * 11}, "parameters.temperature"),
        ({"temperature": 3}, "parameters.temperature"),
        ({"no_speech_threshold": 0.5}, "parameters.no_speech_threshold"),
        ({"num_beams": 4, "logprob_threshold": -1}, "parameters.num_beams"),
        ({"prompt": "word " * 100}, "parameters.prompt"),
        ({"chunk_length_s": 2, "return_segments": True}, "parameters.return_segments"),
        ({"chunk_length_s": 4}, "parameters.chunk_length_s"),
        ({"num_beam": 2}, "parameters.num_beam"),
    ],
)
def test_wrong_option_of_speech_is_refused(server: RunningServer, parameters: dict[str, Any], field: str) -> None:
    body = {"audio": b64encode(changing_tones(0.5, 0)).decode(), "parameters": parameters}
    answer = httpx.post(f"{server.url}/models/whisper/infer", json=body, timeout=WAIT_S)
    assert answer.status_code == 400, answer.text
    assert field in answer.text


def test_prompt_for_model_of_speech_is_refused(server: RunningServer) -> None:
    for path, body in (
        ("/models/whisper/infer", {"prompt": "a"}),
        ("/v1/completions", {"model": "whisper", "prompt": "a"}),
        ("/v1/chat/completions", {"model": "whisper", "messages": [{"role": "user", "content": "a"}]}),
    ):
        answer = httpx.post(f"{server.url}{path}", json=body, timeout=WAIT_S)
        assert answer.status_code in (400, 404), (path, answer.text)
        assert "automatic-speech-recognition" in answer.text, (path, answer.text)


def test_client_that_leaves_frees_the_model(server: RunningServer) -> None:
    def generated() -> float:
        return server.sample("roundhouse_tokens_generated_total", model="whisper")

    # Hundreds of windows, each of many tokens.
    body = json.dumps({"model_name": "whisper", "audio": b64encode(changing_tones(590, 8)).decode()}).encode()
    before = generated()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/infer", body, {"content-type": "application/json"})
    wait_until(lambda: generated() > before)
    connection.close()
    left_at = generated()
    wait_until(lambda: server.inflight("whisper") == 0)
    wait_until(lambda: server.sample("sequences", model="whisper", state="running") == 0)
    # Those of the steps until the server knew.
    assert generated() - left_at < 1000
