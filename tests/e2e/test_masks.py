"""Masks over every protocol: the answers of transformers' own pipeline and model, and refusals by name."""

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.server import RunningServer, serving, wait_until
from tests.support.models.task_folders import save_task_model
from tests.support.models.tasks.inputs import pictures, png
from tests.support.models.tasks.masks import check_masks, mask_pipeline, masks_of_objects, pixels_of

GRID = {"points_per_crop": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "crops_nms_thresh": 1.0}
PICTURE = pictures()[1]
FILE = png(PICTURE)
BASE64 = b64encode(FILE).decode()
POINTS = {"input_points": [[[10, 12], [40, 30]], [[3, 4], [5, 6]]], "input_labels": [[1, 0], [1, -10]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_task_model(tmp_path_factory.mktemp("masks") / "sam", "mask-generation")


@pytest.fixture(scope="module", params=["alone", pytest.param("process", marks=pytest.mark.extended)])
def server(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    mode = '[performance]\nisolation = "process"\n' if request.param == "process" else ""
    text = f'{mode}[[models.torch_models]]\nname = "masks"\npath = "{folder}"\n'
    with serving(tmp_path_factory.mktemp("server"), text) as running:
        yield running.wait_ready()
        running.check_log()


def test_masks_of_grid_in_every_form(server: RunningServer, folder: Path) -> None:
    given = {**GRID, "output_bboxes_mask": True, "output_rle_mask": True}
    expected = mask_pipeline(folder)(PICTURE, **given)
    native, hub = f"{server.url}/models/masks/infer", f"{server.url}/models/masks"
    text = {"parameters": json.dumps(given)}
    answers = [
        httpx.post(native, json={"image": BASE64, "parameters": given}).json()["predictions"][0],
        httpx.post(native, content=FILE, params=text, headers={"content-type": "image/png"}).json()["predictions"][0],
        httpx.post(native, files={"image": ("a.png", FILE)}, data=text).json()["predictions"][0],
        server.infer("masks", image=BASE64, parameters=given)["predictions"][0],
        httpx.post(hub, json={"inputs": BASE64, "parameters": given}).json(),
        httpx.post(hub, json={"inputs": [BASE64, BASE64], "parameters": given}).json()[1],
    ]
    assert len(expected["masks"]) > 1
    for answer in answers:
        check_masks(answer, expected)


def test_file_alone_has_masks_of_default_grid(server: RunningServer, folder: Path) -> None:
    answer = httpx.post(f"{server.url}/models/masks", content=FILE, headers={"content-type": "image/png"})
    assert answer.status_code == 200, answer.text
    check_masks(answer.json(), mask_pipeline(folder)(PICTURE))


def test_masks_of_points_in_every_form(server: RunningServer, folder: Path) -> None:
    pixels, scores = masks_of_objects(folder, PICTURE, **POINTS)
    tensors: list[dict[str, Any]] = [
        {"name": "image", "datatype": "BYTES", "shape": [1], "data": [BASE64]},
        {"name": "parameters", "datatype": "BYTES", "shape": [1], "data": [json.dumps(POINTS)]},
    ]
    outputs = httpx.post(f"{server.url}/v2/models/masks/infer", json={"inputs": tensors}).json()["outputs"]
    answers = [
        server.infer("masks", image=BASE64, parameters=POINTS)["predictions"][0],
        httpx.post(f"{server.url}/models/masks", json={"inputs": BASE64, "parameters": POINTS}).json(),
        json.loads(outputs[0]["data"][0]),
    ]
    for answer in answers:
        np.testing.assert_array_equal([[pixels_of(mask) for mask in own] for own in answer["masks"]], pixels)
        np.testing.assert_allclose(answer["scores"], scores, atol=1e-4)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"input_points": [[[97, 12]]]}, ("parameters.input_points[0][0]", "from 0 to 96", "97")),
        ({"input_points": [[[-1, 12]]]}, ("parameters.input_points[0][0]", "-1")),
        ({"input_points": [[[1, 1]]] * 300}, ("parameters.input_points", "256")),
        ({"input_points": [[[1, 1]] * 10_000]}, ("parameters.input_points", "4096")),
        ({"input_points": [[1, 1]]}, ("parameters.input_points", "list of objects")),
        ({"input_points": [[["a", 1]]]}, ("parameters.input_points", "finite numbers")),
        ({"input_boxes": [[9, 9, 1, 1]]}, ("parameters.input_boxes[0]", "left below right")),
        ({"input_boxes": [[0, 0, 1, 1]], "points_per_crop": 2}, ("parameters.points_per_crop", "leave it out")),
        ({"points_per_crop": 64, "crops_n_layers": 2}, ("parameters.points_per_crop", "25000")),
        ({"points_per_batch": 0}, ("parameters.points_per_batch", "from 1")),
        ({"max_sprinkle_area": 3}, ("parameters.max_sprinkle_area", "unknown field")),
        ({"input_point": [[[1, 1]]]}, ("parameters.input_point", "input_points")),
        ({"input_points": "[" * 1000}, ("parameters.input_points", "list")),
    ],
)
def test_wrong_prompts_are_refused_by_name(
    server: RunningServer, parameters: dict[str, Any], words: tuple[str, ...]
) -> None:
    answers = [
        httpx.post(f"{server.url}/models/masks/infer", json={"image": BASE64, "parameters": parameters}),
        httpx.post(f"{server.url}/models/masks", json={"inputs": BASE64, "parameters": parameters}),
    ]
    for answer in answers:
        assert answer.status_code in (400, 422), answer.text
        assert all(word in answer.text.replace("\\", "") for word in words), answer.text


@pytest.mark.parametrize("size", [(3000, 10), (9000, 9000)])
def test_images_that_are_too_large_are_refused(server: RunningServer, size: tuple[int, int]) -> None:
    file = png(Image.new("RGB", size))
    answer = httpx.post(f"{server.url}/models/masks/infer", content=file, headers={"content-type": "image/png"})
    assert answer.status_code == 400, answer.text


def test_other_requests_run_between_runs(server: RunningServer) -> None:
    slow = {**GRID, "points_per_crop": 64, "points_per_batch": 1}
    with ThreadPoolExecutor(1) as threads:
        body = {"image": BASE64, "parameters": slow}
        long = threads.submit(httpx.post, f"{server.url}/models/masks/infer", json=body, timeout=4.0)
        wait_until(lambda: server.inflight("masks") == 1)
        begun_s = time.monotonic()
        assert server.infer("masks", image=BASE64, parameters=GRID)["predictions"]
        assert time.monotonic() - begun_s < 3
        assert not long.done()
        # Its 4,096 runs take longer than the client waits; those that are left never run.
        with pytest.raises(httpx.ReadTimeout):
            long.result()
    wait_until(lambda: server.inflight("masks") == 0)
