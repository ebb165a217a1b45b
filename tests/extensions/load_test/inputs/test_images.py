"""Images as requests of a load test: given files, and made pictures."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import main
from extensions.load_test.inputs.bodies import RequestContent, made_bodies
from extensions.load_test.inputs.images import SIZE, read_images
from extensions.load_test.inputs.tensors import CannotMake, Made
from frameworks.images.decode import decode_image

IMAGES: dict[str, Any] = {"task": "classify", "image": {"height": 8, "width": 8}, "inputs": [{"name": "pixel_values"}]}
TOWERS: dict[str, Any] = IMAGES | {"task": "embed", "inputs": [{"name": "pixel_values"}, {"name": "text"}]}
FILES = ((b"first", "image/png"), (b"second", "image/webp"))


def bodies(description: dict[str, Any], made: Made) -> list[RequestContent]:
    return made_bodies("native", "m", description, made)


def test_made_images_are_whole_and_differ() -> None:
    found = bodies(IMAGES, Made(distinct=2))
    assert [decode_image(each.content, "image").shape for each in found] == [(SIZE[1], SIZE[0], 3)] * 2
    assert found[0].headers == (("content-type", "image/jpeg"),)
    assert found[0].content != found[1].content
    assert found == bodies(IMAGES, Made(distinct=2))


def test_given_files_are_sent_unchanged() -> None:
    found = {(each.content, each.headers[0][1]) for each in bodies(TOWERS, Made(distinct=20, images=FILES))}
    assert found == set(FILES)


def test_several_images_are_json() -> None:
    [body] = bodies(IMAGES, Made(rows=3, distinct=1, images=FILES))
    assert body.headers == (("content-type", "application/json"),)
    images = [b64decode(each) for each in json.loads(body.content)["image"]]
    assert len(images) == 3
    assert set(images) <= {b"first", b"second"}


def test_two_towers_get_texts_by_default() -> None:
    assert "text" in json.loads(bodies(TOWERS, Made(distinct=1))[0].content)


def test_images_for_another_model_refused() -> None:
    with pytest.raises(CannotMake, match="--images: expected a model that reads images"):
        bodies({"task": "embed", "image": None}, Made(images=FILES))


def test_folder_is_read_in_order(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    assert read_images(tmp_path) == [(b"a.jpg", "image/jpeg"), (b"b.PNG", "image/png")]
    assert read_images(tmp_path / "a.jpg") == [(b"a.jpg", "image/jpeg")]


@pytest.mark.parametrize("name", ["notes.txt", "none.jpg", "empty"])
def test_other_paths_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"--images: expected (a? ?files? with|images, got .*, which does not exist)"):
        read_images(tmp_path / name)


@pytest.mark.parametrize("more", [["--protocol", "v2", "--model", "m"], ["--input", "a.jsonl"]])
def test_images_beside_other_inputs_refused(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--images", "a.jpg", *more]) == 2
    assert "--images: expected --protocol native and no --input" in capsys.readouterr().err
