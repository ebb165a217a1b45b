"""Tasks of transformers over every protocol, with real clients: the answers of transformers' own pipelines."""

import asyncio
import io
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import pytest
import transformers
from huggingface_hub import InferenceClient
from PIL import Image

from frameworks.media.audio import decode_audio
from frameworks.tasks.table import TASKS as ALL_TASKS
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, serving
from tests.e2e.triton_clients import GRPC_KINDS, KINDS, grpc_tensor, http_tensor, triton_client
from tests.frameworks.pytorch.tasks.test_task_models import check_equal
from tests.support.images import encoded, photo
from tests.support.media import encoded_video, moving_square, tone, wav
from tests.support.models.task_folders import save_task_model
from tests.support.models.tasks.inputs import WORD_BOXES
from tests.support.models.vision_folders import save_image_classifier

NAMES = {
    "ner": "token-classification",
    "detector": "object-detection",
    "masked": "fill-mask",
    "labels": "zero-shot-classification",
    "answers": "question-answering",
    "segments": "image-segmentation",
    "depth": "depth-estimation",
    "pictures": "zero-shot-image-classification",
    "tables": "table-question-answering",
    "documents": "document-question-answering",
    "sounds": "audio-classification",
    "videos": "video-classification",
}
Modes = {"alone": "", "workers": "[server]\nworkers = 2\n", "process": '[performance]\nisolation = "process"\n'}
TEXT = "the cat sat on the mat"
PICTURE = photo(40, 60, 1)
FILE = encoded(PICTURE, "PNG")
SOUND = wav(tone(8_000))
LABELS = ["steam", "the mat", "cat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, task in NAMES.items():
        save_task_model(folder / name, task)
    save_image_classifier(folder / "photos", "vit", tuple("abcdefgh"))
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "alone",
        pytest.param("workers", marks=pytest.mark.extended),
        pytest.param("process", marks=pytest.mark.extended),
    ],
)
def tasks(
    request: pytest.FixtureRequest, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    text = Modes[request.param]
    for name, task in NAMES.items():
        text += f'[[models.torch_models]]\nname = "{name}"\npath = "{folders / name}"\ntask = "{task}"\ncache = true\n'
    text += f'[[models.torch_models]]\nname = "photos"\npath = "{folders / "photos"}"\n'
    with serving(tmp_path_factory.mktemp("server"), text, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def reference(folders: Path, name: str) -> Any:
    return transformers.pipeline(NAMES[name], model=str(folders / name), device="cpu")


def client(server: RunningServer, name: str) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/models/{name}", token="none")


def test_infer_answers_predictions_of_pipeline(tasks: RunningServer, folders: Path) -> None:
    found = tasks.infer("ner", text=[TEXT, "steam"], parameters={"aggregation_strategy": "simple"})
    pipeline = reference(folders, "ner")
    check_equal(found["predictions"], pipeline([TEXT, "steam"], aggregation_strategy="simple"))


def test_infer_reads_question_and_context(tasks: RunningServer) -> None:
    found = tasks.infer("answers", text={"question": "what sat", "context": TEXT})
    [answer] = found["predictions"]
    assert TEXT[answer["start"] : answer["end"]] == answer["answer"]


def test_infer_reads_files_in_every_form(tasks: RunningServer, folders: Path) -> None:
    expected = reference(folders, "detector")(Image.fromarray(PICTURE), threshold=0.0)
    options = {"threshold": 0.0}
    given = {"parameters": json.dumps(options)}
    path = f"{tasks.url}/models/detector/infer"
    answers = [
        httpx.post(path, json={"image": b64encode(FILE).decode(), "parameters": options}),
        httpx.post(path, content=FILE, params=given, headers={"content-type": "image/png"}),
        httpx.post(path, files={"image": ("a.png", FILE)}, data=given),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        check_equal(answer.json()["predictions"], [expected])


@pytest.mark.parametrize(
    ("model", "field", "kind"), [("sounds", "audio", "audio/wav"), ("videos", "video", "video/mp4")]
)
def test_sound_and_videos_are_read_in_every_form(tasks: RunningServer, model: str, field: str, kind: str) -> None:
    file = SOUND if field == "audio" else encoded_video(moving_square(8))
    path = f"{tasks.url}/models/{model}/infer"
    answers = [
        httpx.post(path, json={field: b64encode(file).decode()}),
        httpx.post(path, content=file, headers={"content-type": kind}),
        httpx.post(path, content=file, headers={"content-type": "application/octet-stream"}),
        httpx.post(path, files={field: ("a", file)}),
    ]
    found = []
    for answer in answers:
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["predictions"])
    assert len(found[0][0]) == 3
    for each in found[1:]:
        check_equal(each, found[0])


def test_pictures_are_answered_as_png(tasks: RunningServer, folders: Path) -> None:
    found = tasks.infer("depth", image=b64encode(FILE).decode())
    [prediction] = found["predictions"]
    expected = reference(folders, "depth")(Image.fromarray(PICTURE))
    picture = np.asarray(Image.open(io.BytesIO(b64decode(prediction["depth"]))), np.int64)
    assert np.abs(picture - np.asarray(expected["depth"], np.int64)).max() <= 1
    np.testing.assert_allclose(prediction["predicted_depth"], expected["predicted_depth"].numpy(), atol=1e-3)


def test_hub_client_reads_every_answer(tasks: RunningServer, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests that load models forbid the client to reach the hub.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    entities = client(tasks, "ner").token_classification(TEXT, aggregation_strategy="simple")
    check_equal(
        [each.word for each in entities],
        [each["word"] for each in reference(folders, "ner")(TEXT, aggregation_strategy="simple")],
    )
    filled = client(tasks, "masked").fill_mask("the [MASK] sat", top_k=2)
    assert [each.token for each in filled] == [
        each["token"] for each in reference(folders, "masked")("the [MASK] sat", top_k=2)
    ]
    answer: Any = client(tasks, "answers").question_answering(question="what sat", context=TEXT)
    answer = answer[0] if isinstance(answer, list) else answer
    assert TEXT[answer.start : answer.end] == answer.answer
    labels = client(tasks, "labels").zero_shot_classification(TEXT, LABELS)
    assert [each.label for each in labels] == reference(folders, "labels")(TEXT, candidate_labels=LABELS)["labels"]
    boxes = client(tasks, "detector").object_detection(FILE, threshold=0.0)
    expected = reference(folders, "detector")(Image.fromarray(PICTURE), threshold=0.0)
    assert [each.box.xmin for each in boxes] == [each["box"]["xmin"] for each in expected]
    # Without parameters a file is sent as it is.
    assert client(tasks, "detector").object_detection(FILE) == client(tasks, "detector").object_detection(
        FILE, threshold=0.5
    )
    segments = client(tasks, "segments").image_segmentation(FILE)
    expected = reference(folders, "segments")(Image.fromarray(PICTURE))
    assert [each.label for each in segments] == [each["label"] for each in expected]
    for segment, other in zip(segments, expected, strict=True):
        mask: Any = segment.mask
        assert (np.asarray(mask) == np.asarray(other["mask"])).mean() > 0.99
    heard = client(tasks, "sounds").audio_classification(SOUND, top_k=2)
    expected = reference(folders, "sounds")(decode_audio(SOUND, 16_000, "audio"), top_k=2)
    assert [each.label for each in heard] == [each["label"] for each in expected]
    table = {"cat": ["mat", "engine"], "steam": ["on", "cold"]}
    found = client(tasks, "tables").table_question_answering(table, "what sat on the mat")
    assert found.answer == reference(folders, "tables")({"query": "what sat on the mat", "table": table})["answer"]
    words: Any = [[word, box] for word, box in WORD_BOXES]
    options: dict[str, Any] = {"top_k": 2, "max_seq_len": 32}
    expected = reference(folders, "documents")(Image.fromarray(PICTURE), "what sat", word_boxes=WORD_BOXES, **options)
    for given in (words, [each for pair in words for each in pair]):
        read = client(tasks, "documents").document_question_answering(FILE, "what sat", word_boxes=given, **options)
        assert [each.answer for each in read] == [each["answer"] for each in expected]
        check_equal([each.score for each in read], [each["score"] for each in expected])
    shown = client(tasks, "pictures").zero_shot_image_classification(FILE, LABELS)
    expected = reference(folders, "pictures")(Image.fromarray(PICTURE), candidate_labels=LABELS)
    check_equal([each.score for each in shown], [each["score"] for each in expected])


@pytest.mark.parametrize("options", [{}, {"top_k": 7}, {"function_to_apply": "none", "top_k": 8}])
def test_hub_client_gets_labels_of_image(
    tasks: RunningServer, folders: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    pipeline = transformers.pipeline("image-classification", model=str(folders / "photos"), device="cpu")
    picture = Image.fromarray(PICTURE)
    found = client(tasks, "photos").image_classification(FILE, **options)
    assert len(found) == len(pipeline(picture, **options))
    wanted = {each["label"]: each["score"] for each in pipeline(picture, **{**options, "top_k": 8})}
    # Resizing rounds each pixel to one of 256 values.
    np.testing.assert_allclose([each.score for each in found], [wanted[each.label] for each in found], atol=2e-2)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@pytest.mark.parametrize("kind", [KINDS[0], GRPC_KINDS[0]])
def test_triton_client_gets_predictions_as_json(tasks: RunningServer, folders: Path, kind: str) -> None:
    texts = np.array([TEXT.encode(), b"steam"], dtype=object)
    with triton_client(tasks, kind) as triton:
        tensor: Any = grpc_tensor if kind in GRPC_KINDS else http_tensor
        options = np.array([b'{"aggregation_strategy": "simple"}'], dtype=object)
        more = ("BYTES",) if kind in GRPC_KINDS else ()
        inputs = [tensor("text", texts, *more), tensor("parameters", options, *more)]
        answer = triton.infer("ner", inputs)
    found = [json.loads(each) for each in answer.as_numpy("predictions")]
    check_equal(found, reference(folders, "ner")([TEXT, "steam"], aggregation_strategy="simple"))


def test_models_show_task_parameters_and_labels(tasks: RunningServer) -> None:
    shown = httpx.get(f"{tasks.url}/models/ner").json()
    assert shown["task"] == "token-classification"
    assert {each["name"] for each in shown["parameters"]} == {
        each.name for each in ALL_TASKS["token-classification"].parameters
    }
    assert shown["version_details"]["1"]["labels"] == ["O", "B-PER", "I-PER", "B-LOC"]


def test_concurrent_callers_get_answers_of_their_own(tasks: RunningServer, folders: Path) -> None:
    texts = [" ".join(TEXT.split()[: 1 + number % 6]) for number in range(16)]
    expected = reference(folders, "ner")(texts)

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(timeout=60) as http:
            path = f"{tasks.url}/models/ner/infer"
            answers = await asyncio.gather(*(http.post(path, json={"text": text}) for text in texts))
        return [answer.json()["predictions"][0] for answer in answers]

    check_equal(asyncio.run(ask()), expected)


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        ("ner", {"image": b64encode(FILE).decode()}, ("image", "text")),
        ("ner", {"text": 3}, ("text", "string")),
        ("ner", {"text": TEXT, "parameters": {"stride": -1}}, ("parameters.stride",)),
        ("ner", {"text": TEXT, "parameters": {"ignore_label": []}}, ("ignore_labels",)),
        ("ner", {"text": "a" * 200_001}, ("200000 characters",)),
        ("labels", {"text": TEXT}, ("candidate_labels",)),
        ("labels", {"text": TEXT, "parameters": {"candidate_labels": ["x"] * 10_000}}, ("candidate_labels", "1000")),
        ("answers", {"text": {"question": "q" * 1_000_000, "context": TEXT}}, ("question", "10000 characters")),
        ("answers", {"text": TEXT}, ("text", "context")),
        ("detector", {"image": "AAAA"}, ("image",)),
        ("detector", {"image": b64encode(FILE).decode(), "parameters": {"threshold": 2}}, ("threshold",)),
        ("masked", {"text": "no mask"}, ("mask",)),
    ],
)
def test_wrong_inputs_are_refused_by_name(
    tasks: RunningServer, model: str, body: dict[str, Any], words: tuple[str, ...]
) -> None:
    answer = httpx.post(f"{tasks.url}/models/{model}/infer", json=body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message


def test_nan_in_parameters_is_refused(tasks: RunningServer) -> None:
    body = b'{"text": "cat", "parameters": {"stride": NaN}}'
    assert_refused(tasks.post("/models/ner/infer", body), 400, "invalid_json")
