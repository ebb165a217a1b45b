"""Images of a run: folders, columns with bytes, base64 and paths, and rows that cannot be read."""

import asyncio
import io
import json
import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.commands import main
from extensions.offline import media
from extensions.offline.contract import RequestRefused, RowAnswer, RunModelDescription, WrongCommand
from extensions.offline.input.media_folder import COLUMN, MediaFolderReader, find_media
from extensions.offline.job import RunJob, run_job
from extensions.offline.media import MediaRows, check_column, example_image
from extensions.offline.requests import RowSource
from frameworks.images.decode import decode_image
from frameworks.types import EmbedAnswer
from tests.e2e.server import MODELS
from tests.support.images import encoded, photo

FILES = [b"image %d" % number for number in range(20)]
BROKEN = b"broken"
SHAPES = str(MODELS / "shapes")


class FakeModel:
    """A RunModel. The embedding of an image is its size in bytes; BROKEN is refused."""

    concurrency = 2
    rows_per_request = 32

    def __init__(self) -> None:
        self.description = RunModelDescription("fake", "embed", {}, {}, {}, image_size=(2, 3))
        self.sent: list[list[bytes]] = []

    async def answer(self, body: bytes) -> RowAnswer:
        given = json.loads(body)["image"]
        files = [b64decode(each) for each in (given if isinstance(given, list) else [given])]
        if isinstance(given, list):
            self.sent.append(files)
        if BROKEN in files:
            raise RequestRefused(f"image[{files.index(BROKEN)}]: expected a whole file")
        return EmbedAnswer(np.array([[len(each)] for each in files], np.float32), tokens=0)


def folder_of(tmp_path: Path, files: dict[str, bytes]) -> Path:
    folder = tmp_path / "photos"
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def job_of(folder: Path, output: Path, **options: Any) -> RunJob:
    source = RowSource(COLUMN, {}, "image", {}, folder)
    parts = output.with_name(output.name + ".parts")
    return RunJob([find_media(str(folder), output)], parts, source, output.with_suffix(".errors"), **options)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_column_bytes_become_base64(kind: pa.DataType) -> None:
    rows = MediaRows(pa.table({"image": pa.array([*FILES[:2], None], kind)}), "image", None, "image", {"top_k": 1})
    (request,) = rows.requests(32)
    assert json.loads(request.body) == {"image": [b64encode(each).decode() for each in FILES[:2]], "top_k": 1}
    assert (request.positions, rows.bad) == ([0, 1], [(2, "image: expected a file, got null")])


def test_structs_with_bytes_are_images() -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array([{"bytes": b"ab", "path": "a.jpg"}, None, {"path": "b.jpg"}], kind)})
    check_column(table.schema, "image", None)
    rows = MediaRows(table.slice(0, 3), "image", None, "image", {})
    assert [request.positions for request in rows.requests(32)] == [[0]]
    assert [position for position, _ in rows.bad] == [1, 2]


def test_texts_are_sent_unchanged() -> None:
    rows = MediaRows(pa.table({"image": ["data:image/png;base64,AA=="]}), "image", None, "image", {})
    assert json.loads(next(rows.requests(32)).body) == {"image": ["data:image/png;base64,AA=="]}


def test_requests_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_REQUEST_BYTES", 30)
    rows = MediaRows(pa.table({"image": [b"a" * 9, b"b" * 9, b"c" * 9, b"d" * 99]}), "image", None, "image", {})
    assert [request.positions for request in rows.requests(32)] == [[0, 1], [2], [3]]


def test_paths_stay_below_the_root(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.jpg": b"a", "deep/b.jpg": b"b", "empty.jpg": b""})
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"secret")
    (folder / "link.jpg").symlink_to(secret)
    os.mkfifo(folder / "pipe.jpg")
    paths = [
        "a.jpg", "deep/../a.jpg", str(folder / "deep/b.jpg"), "../secret.jpg", str(secret), "link.jpg", "none.jpg",
        "deep", "pipe.jpg", "empty.jpg", "a\0b", "x" * 5000,
    ]  # fmt: skip
    rows = MediaRows(pa.table({"path": paths}), "path", folder, "image", {})
    (request,) = rows.requests(32)
    assert [b64decode(each) for each in json.loads(request.body)["image"]] == [b"a", b"a", b"b"]
    assert [position for position, _ in rows.bad] == list(range(3, len(paths)))


def test_large_file_is_never_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.jpg": b""})
    with (folder / "a.jpg").open("wb") as file:
        file.truncate(2**40)
    rows = MediaRows(pa.table({"path": ["a.jpg"]}), "path", folder, "image", {})
    assert list(rows.requests(32)) == []
    assert f"bytes, got {2**40}" in rows.bad[0][1]


@pytest.mark.parametrize(
    ("column", "root"), [(pa.array([1]), None), (pa.array([b"a"]), Path()), (pa.array([["a"]]), None)]
)
def test_column_of_other_type_refused(column: pa.Array, root: Path | None) -> None:
    with pytest.raises(WrongCommand, match="--file-column: expected a column of"):
        check_column(pa.schema([pa.field("image", column.type)]), "image", root)


def test_example_image_has_its_size() -> None:
    pixels = decode_image(b64decode(example_image(5, 7)), "image")
    assert pixels.shape == (5, 7, 3)
    assert not pixels.any()


def test_folder_rows_follow_path_order(tmp_path: Path) -> None:
    names = ["b.PNG", "a/z.jpg", "a/a.webp", "c.jpeg"]
    folder = folder_of(tmp_path, dict.fromkeys([*names, "notes.txt"], b"x"))
    reader = MediaFolderReader(folder)
    windows = list(reader.windows(3, 0))
    assert [path for each in windows for path in each.table[COLUMN].to_pylist()] == sorted(names)
    assert [each.rows for each in windows] == [[1, 2, 3], [4]]
    assert [each.rows for each in reader.windows(3, 1)] == [[4]]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
def test_path_outside_utf8_is_a_bad_row(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.png": b"1", "c.png": b"2"})
    Path(os.fsdecode(os.fsencode(folder) + b"/b\xff.png")).write_bytes(b"3")
    assert find_media(str(folder), tmp_path / "out.jsonl").size == 3
    (window,) = MediaFolderReader(folder).windows(10, 0)
    assert window.table.column(COLUMN).to_pylist() == ["a.png", "c.png"]
    assert window.rows == [1, 3]
    assert [(each.row, "UTF-8" in each.reason) for each in window.bad] == [(2, True)]


def test_output_inside_the_folder_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a.jpg": b"x"})
    with pytest.raises(WrongCommand, match="OUTPUT: expected a file outside"):
        find_media(str(folder), folder / "out.parquet")


def test_folder_without_images_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCommand, match="INPUT: expected files with"):
        find_media(str(folder_of(tmp_path, {"a.txt": b"x"})), tmp_path / "out.csv")


def test_damaged_images_fail_alone(tmp_path: Path) -> None:
    files = {f"{number:02d}.jpg": content for number, content in enumerate(FILES)}
    folder = folder_of(tmp_path, {**files, "05.jpg": BROKEN, "07.jpg": b""})
    output, model = tmp_path / "out.parquet", FakeModel()
    result = asyncio.run(run_job(job_of(folder, output, window_rows=6), model, io.StringIO()))
    assert (result.rows, result.bad) == (20, 2)
    table = pq.read_table(output)
    assert table["file"].to_pylist() == [name for name in sorted(files) if name not in ("05.jpg", "07.jpg")]
    assert table["embedding"].to_pylist() == [[len(files[name])] for name in table["file"].to_pylist()]
    errors = [json.loads(line) for line in output.with_suffix(".errors").read_text().splitlines()]
    assert [(each["row"], each["reason"]) for each in errors] == [
        (6, 'image: expected a whole file ("05.jpg")'),
        (8, f'image: expected a file of 1 to {64 * 1024**2} bytes, got 0 ("07.jpg")'),
    ]


def test_changed_folder_is_no_resumption(tmp_path: Path) -> None:
    class Ending(FakeModel):
        async def answer(self, body: bytes) -> RowAnswer:
            if len(self.sent) > 1:
                raise WrongCommand("the end")
            return await super().answer(body)

    folder = folder_of(tmp_path, {f"{number}.jpg": b"x" for number in range(9)})
    output = tmp_path / "out.jsonl"
    with pytest.raises(WrongCommand, match="the end"):
        asyncio.run(run_job(job_of(folder, output, window_rows=2), Ending(), io.StringIO()))
    (folder / "9.jpg").write_bytes(b"new")
    with pytest.raises(WrongCommand, match="--restart"):
        asyncio.run(run_job(job_of(folder, output, window_rows=2), FakeModel(), io.StringIO()))


def test_run_labels_a_folder(tmp_path: Path) -> None:
    example = Path(SHAPES, "example.jpg").read_bytes()
    folder = folder_of(tmp_path, {"star.jpg": example, "other.png": encoded(photo(20, 30), "PNG")})
    output = tmp_path / "labels.jsonl"
    assert main(["run", SHAPES, str(folder), str(output), "--images", "--top-k", "2"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["file"] for row in rows] == ["other.png", "star.jpg"]
    assert (rows[1]["label"], len(rows[1]["labels"])) == ("star", 2)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_run_drops_columns_of_images(tmp_path: Path, form: str) -> None:
    example = Path(SHAPES, "example.jpg").read_bytes()
    text = b64encode(example).decode()
    source, output = tmp_path / f"in.{form}", tmp_path / f"out.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"id": [1], "picture": [example]}), source)
    elif form == "jsonl":
        source.write_text(json.dumps({"id": 1, "picture": text}))
    else:
        source.write_text(f"id,picture\n1,{text}\n")
    assert main(["run", SHAPES, str(source), str(output), "--image-column", "picture", "--top-k", "1"]) == 0
    content = output.read_bytes() if form != "parquet" else json.dumps(pq.read_table(output).to_pylist()).encode()
    assert b"star" in content
    assert b"picture" not in content


def test_run_keeps_columns_of_paths(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("picture\nexample.jpg\n")
    words = ["--image-column", "picture", "--image-root", SHAPES, "--top-k", "1"]
    assert main(["run", SHAPES, str(source), str(output), *words]) == 0
    assert json.loads(output.read_text())["picture"] == "example.jpg"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "--image-root", "."], "--file-root: expected a folder, beside --file-column"),
        (["--images", "--options", '{"image": "a"}'], "--options: expected options of one row, got image"),
        (["--images", "--no-normalize"], "normalize: expected a model of task embed"),
    ],
)
def test_wrong_options_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folder = folder_of(tmp_path, {"a.jpg": b"x"})
    assert main(["run", SHAPES, str(folder), str(tmp_path / "out.csv"), *words]) == 2
    assert message in capsys.readouterr().err


def test_model_without_images_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, {"a.jpg": b"x"})
    assert main(["run", str(MODELS / "digits"), str(folder), str(tmp_path / "out.csv"), "--images"]) == 2
    assert "MODEL: expected a model that reads files" in capsys.readouterr().err
