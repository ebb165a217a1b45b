"""Runs of tasks: their predictions are those of transformers' pipelines, and of a server; other kinds of vectors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import transformers
from sentence_transformers import SparseEncoder

from app.cli.commands import main
from tests.e2e.server import RunningServer, serving
from tests.frameworks.pytorch.tasks.test_task_models import check_equal
from tests.support.models.late_folders import save_pylate
from tests.support.models.sparse_folders import save_splade
from tests.support.models.task_folders import save_task_model
from tests.support.models.tasks.inputs import CONTEXTS, RATE, TEXTS, pictures, png, sounds, wav
from tests.support.models.tasks.masks import check_masks, mask_pipeline, masks_of_objects, pixels_of

pytestmark = pytest.mark.extended
TASKS = (
    "token-classification", "fill-mask", "question-answering", "table-question-answering", "object-detection",
    "audio-classification", "keypoint-matching", "mask-generation",
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        **{task: save_task_model(folder / task, task) for task in TASKS},
        "sparse": save_splade(folder / "sparse"),
        "late": save_pylate(folder / "late"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    names = ("token-classification", "question-answering", "object-detection", "sparse", "late")
    entries = "".join(f'[[models.torch_models]]\nname = "{name}"\npath = "{folders[name]}"\n' for name in names)
    with serving(tmp_path_factory.mktemp("server"), entries) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return written(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])


def written(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(model: Path | str, source: Path, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """Run the command; return the rows of its output, in JSON Lines."""
    output = source.parent.parent / f"{source.parent.name}-{len(words)}.jsonl"
    assert main(["run", str(model), str(source), str(output), *words]) == status
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def options(**parameters: Any) -> list[str]:
    return ["--options", json.dumps({"parameters": parameters})]


def test_entities_equal_those_of_pipeline(folders: dict[str, Path], texts: Path) -> None:
    model = folders["token-classification"]
    rows = run(model, texts, "--column", "text", *options(aggregation_strategy="simple"))
    pipeline = transformers.pipeline("token-classification", model=str(model), aggregation_strategy="simple")
    assert [row["text"] for row in rows] == list(TEXTS)
    for row in rows:
        check_equal(row["prediction"], pipeline(row["text"]))


def test_server_predicts_as_a_local_run(folders: dict[str, Path], server: RunningServer, texts: Path) -> None:
    words = ["--column", "text", *options(aggregation_strategy="simple")]
    local = run(folders["token-classification"], texts, *words)
    for mine, theirs in zip(local, run("token-classification", texts, *words, "--url", server.url), strict=True):
        check_equal(mine["prediction"], theirs["prediction"])


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_question_and_context_are_two_columns(
    folders: dict[str, Path], server: RunningServer, tmp_path: Path, form: str
) -> None:
    rows = [{"question": question, "body": context} for question, context in CONTEXTS]
    source, output = tmp_path / f"in.{form}", tmp_path / "out.parquet"
    if form == "jsonl":
        written(source, rows)
    else:
        source.write_text("question,body\n" + "".join(f'"{row["question"]}","{row["body"]}"\n' for row in rows))
    words = ["--columns", "question,context=body"]
    assert main(["run", str(folders["question-answering"]), str(source), str(output), *words]) == 0
    table = pq.read_table(output)
    assert table.column("body").to_pylist() == [context for _, context in CONTEXTS]
    for row, prediction in zip(rows, table.column("prediction").to_pylist(), strict=True):
        asked = {"question": row["question"], "context": row["body"]}
        (answer,) = server.infer("question-answering", text=asked)["predictions"]
        check_equal(json.loads(prediction), answer)


def test_row_without_context_is_bad(folders: dict[str, Path], tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [{"question": "who ?", "context": None}, {"question": "a", "context": "b"}])
    bad = tmp_path / "bad.jsonl"
    words = ["--columns", "question,context", "--errors", str(bad)]
    rows = run(folders["question-answering"], source, *words, status=3)
    assert [row["question"] for row in rows] == ["a"]
    assert "context: expected a value, got null" in json.loads(bad.read_text())["reason"]


def test_tables_are_json_in_csv(folders: dict[str, Path], tmp_path: Path) -> None:
    table = {"engine": ["Rocket", "Adler"], "wheels": ["4", "6"]}
    source = tmp_path / "in.csv"
    source.write_text('query,table\nhow many wheels ?,"' + json.dumps(table).replace('"', '""') + '"\n')
    (row,) = run(folders["table-question-answering"], source, "--columns", "query,table")
    pipeline = transformers.pipeline("table-question-answering", model=str(folders["table-question-answering"]))
    check_equal(row["prediction"], pipeline(table=table, query="how many wheels ?"))


def test_text_without_mask_is_a_bad_row(folders: dict[str, Path], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[[models.torch_models]]\nname = "masks"\npath = "{folders["fill-mask"]}"\ntask = "fill-mask"\n')
    source = written(tmp_path / "in.jsonl", [{"text": "the [MASK] sat"}, {"text": "no mask"}])
    bad = tmp_path / "bad.jsonl"
    words = ["--column", "text", "--config", str(config), "--errors", str(bad), *options(top_k=2)]
    (row,) = run("masks", source, *words, status=3)
    assert len(row["prediction"]) == 2
    assert json.loads(bad.read_text())["reason"] == "text: expected a text with the mask token [MASK], got none"


def test_objects_of_a_folder_of_pictures(folders: dict[str, Path], server: RunningServer, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, picture in enumerate(pictures()):
        (photos / f"{number}.png").write_bytes(png(picture))
    (photos / "notes.txt").write_text("no picture")
    words = ["--files", *options(threshold=0.0)]
    model = folders["object-detection"]
    pipeline = transformers.pipeline("object-detection", model=str(model), threshold=0.0)
    for rows in (run(model, photos, *words), run("object-detection", photos, *words, "--url", server.url)):
        assert [row["file"] for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
        for row, picture in zip(rows, pictures(), strict=True):
            check_equal(row["prediction"], pipeline(picture))


def test_masks_of_a_folder_of_pictures(folders: dict[str, Path], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, picture in enumerate(pictures()):
        (photos / f"{number}.png").write_bytes(png(picture))
    model = folders["mask-generation"]
    given = {"points_per_crop": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "output_bboxes_mask": True}
    pipeline = mask_pipeline(model)
    for row, picture in zip(run(model, photos, "--files", *options(**given)), pictures(), strict=True):
        check_masks(row["prediction"], pipeline(picture, **given))
    points = {"input_points": [[[3, 4]], [[20, 30]]]}
    for row, picture in zip(run(model, photos, "--files", *options(**points), "--restart"), pictures(), strict=True):
        pixels, _ = masks_of_objects(model, picture, **points)
        found = [[pixels_of(mask) for mask in own] for own in row["prediction"]["masks"]]
        np.testing.assert_array_equal(found, pixels)


def test_labels_of_a_folder_of_sounds(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "sounds"
    folder.mkdir()
    for number, sound in enumerate(sounds()):
        (folder / f"{number}.wav").write_bytes(wav(sound, RATE))
    (folder / "photo.png").write_bytes(png(pictures()[0]))
    model = folders["audio-classification"]
    rows = run(model, folder, "--files", *options(top_k=2))
    assert [row["file"] for row in rows] == ["0.wav", "1.wav", "2.wav", "3.wav"]
    pipeline = transformers.pipeline("audio-classification", model=str(model))
    for row, sound in zip(rows, sounds(), strict=True):
        # The file has 16 bits.
        check_equal(row["prediction"], pipeline(np.round(sound * 32767) / 32768, top_k=2))


def test_wrong_commands_for_tasks_refused(
    folders: dict[str, Path], texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entities, answers = folders["token-classification"], folders["question-answering"]
    for model, words, message in (
        (entities, ["--column", "text", *options(strategy="simple")], "parameters.strategy: unknown field"),
        (entities, ["--files"], "MODEL: expected a model that reads files"),
        (answers, ["--columns", "question=text,contexts=text"], "--columns: expected inputs of the model, question, c"),
        (folders["keypoint-matching"], ["--files"], "keypoint-matching reads two images for each row"),
    ):
        run(model, texts, *words, status=2)
        assert message in capsys.readouterr().err


def test_sparse_vectors_are_two_columns(folders: dict[str, Path], server: RunningServer, texts: Path) -> None:
    encoder = SparseEncoder(str(folders["sparse"]), device="cpu")
    expected = encoder.encode(list(TEXTS), convert_to_sparse_tensor=False).numpy()
    words = ["--column", "text"]
    for rows in (run(folders["sparse"], texts, *words), run("sparse", texts, *words, "--url", server.url)):
        for row, vector in zip(rows, expected, strict=True):
            assert row["indices"] == np.flatnonzero(vector).tolist()
            np.testing.assert_allclose(row["values"], vector[row["indices"]], atol=1e-5)


def test_vectors_of_tokens_are_lists(folders: dict[str, Path], server: RunningServer, texts: Path) -> None:
    words = ["--column", "text"]
    answer = server.infer("late", text=list(TEXTS))["multi_embeddings"]
    for rows in (run(folders["late"], texts, *words), run("late", texts, *words, "--url", server.url)):
        for row, vectors in zip(rows, answer, strict=True):
            np.testing.assert_allclose(row["embeddings"], vectors, atol=1e-5)


def test_other_vectors_go_into_no_collection(
    folders: dict[str, Path], server: RunningServer, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sparse", texts, "--column", "text", "--url", server.url, "--into", "docs", "--id", "text", status=2)
    assert "--into: expected a model that embeds each row as one vector, got sparse vectors" in capsys.readouterr().err
