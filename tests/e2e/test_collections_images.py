"""Images in a collection: records and queries of images, embedded by the model of the collection."""

import io
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from app.cli.commands import main
from tests.e2e.server import RunningServer, assert_refused, serving
from tests.e2e.test_images import means
from tests.support.models.onnx_graphs import save

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}


def image_of(colour: tuple[int, int, int], is_url: bool = False) -> str:
    content = io.BytesIO()
    Image.new("RGB", (20, 30), colour).save(content, "PNG")
    text = b64encode(content.getvalue()).decode()
    return f"data:image/png;base64,{text}" if is_url else text


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("colours")
    (folder / "means").mkdir()
    save(means("image_embeds"), folder / "means")
    config = f'[[models.onnx_models]]\nname = "means"\npath = "{folder / "means"}"\n[models.onnx_models.image]\n'
    for name in ("colours", "photos"):
        config += f'[[collections]]\nname = "{name}"\ndimensions = 3\nmodel = "means"\nmetric = "euclid"\n'
    with serving(folder, config) as running:
        running.wait_ready()
        records = [{"id": name, "image": image_of(colour), "text": name} for name, colour in COLOURS.items()]
        answer = running.client.post("/v1/collections/colours/upsert", json={"records": records})
        assert answer.json()["upserted"] == 3, answer.text
        yield running
        running.check_log()


def found(server: RunningServer, query: object, collection: str = "colours") -> list[str]:
    answer = server.client.post(f"/v1/collections/{collection}/search", json={"query": query, "top_k": 1})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    lists = results if isinstance(query, list) else [results]
    return [hit["id"] for hits in lists for hit in hits]


def test_image_finds_nearest_image(colours: RunningServer) -> None:
    assert found(colours, {"image": image_of((200, 40, 40), is_url=True)}) == ["red"]
    queries = [{"image": image_of(colour)} for colour in ((0, 0, 255), (0, 255, 0))]
    assert found(colours, queries) == ["blue", "green"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("red", "query: expected a model that embeds texts, got one whose task is embed"),
        ({"image": "AAAA"}, "query.image: expected"),
        ({}, "query.image: expected an image as base64 or data URL, got nothing"),
        ([{"image": "AAAA"}, 1], "query[1]: expected an object with image as the others, got a number"),
        ([{"image": image_of((1, 2, 3))}, {"image": "AAAA"}], "query[1].image: expected"),
    ],
)
def test_unreadable_query_is_named(query: object, message: str, colours: RunningServer) -> None:
    answer = colours.client.post("/v1/collections/colours/search", json={"query": query})
    assert answer.json()["error"]["message"].startswith(message), answer.text
    assert_refused(answer, 400, "invalid_input")


def test_unreadable_image_of_record_is_named(colours: RunningServer) -> None:
    records = [{"id": "red", "image": image_of((1, 2, 3))}, {"id": "bad", "image": "AAAA"}]
    answer = colours.client.post("/v1/collections/colours/upsert", json={"records": records})
    assert_refused(answer, 400, "invalid_input", "records[1].image: expected")
    assert colours.client.get("/v1/collections/colours").json()["rows"] == 3


def test_run_fills_collection_with_images(colours: RunningServer, tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "more"
    folder.mkdir(parents=True)
    for name in ("red", "green"):
        (folder / f"{name}.png").write_bytes(b64decode(image_of(COLOURS[name])))
    words = ["run", "means", str(folder.parent), str(tmp_path / "out.jsonl"), "--images", "--url", colours.url]
    assert main([*words, "--into", "photos"]) == 0
    table = pa.table({"key": [7], "image": [b64decode(image_of(COLOURS["blue"]))], "year": [2026]})
    pq.write_table(table, tmp_path / "images.parquet")
    words = ["run", "means", str(tmp_path / "images.parquet"), str(tmp_path / "out.csv"), "--url", colours.url]
    words += ["--image-column", "image", "--into", "photos"]
    assert main([*words, "--id", "key", "--metadata", "year"]) == 0
    queries = [{"image": image_of(COLOURS[name])} for name in ("red", "green", "blue")]
    assert found(colours, queries, "photos") == ["more/red.png", "more/green.png", "7"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--image-column", "image"], "--into: expected --id with it, got none"),
        (["--image-column", "image", "--id", "image"], '--id: expected one of key, got "image"'),
        (["--columns", "image"], "--into: expected texts or images, got --columns"),
    ],
)
def test_run_into_names_wrong_columns(
    more: list[str], message: str, colours: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"key": [7], "image": [b"7"]}), tmp_path / "images.parquet")
    words = ["run", "means", str(tmp_path / "images.parquet"), str(tmp_path / "out.csv"), "--url", colours.url]
    assert main([*words, "--into", "photos", *more]) == 2
    assert message in capsys.readouterr().err
