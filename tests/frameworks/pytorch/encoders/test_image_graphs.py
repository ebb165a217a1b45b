"""Runs of images by graphs: the rows of runs without them, on a simulated device that is late."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.device.graphs import Graphs, OnDevice
from frameworks.pytorch.device.queue import DeviceQueue, StreamQueue
from frameworks.pytorch.encoders.images.graphs import ImageGraphs
from frameworks.types import Array, TensorBatch
from tests.frameworks.models.loading import load_torch_model
from tests.support.late_queue import LateQueue
from tests.support.models.image_families import save_classifier
from tests.support.models.vision_folders import save_image_classifier, save_image_embedder, save_two_towers
from tests.support.simulated_graphs import SimulatedGraphs
from tests.support.step_recording import recording

CPU, META = torch.device("cpu"), torch.device("meta")
MAX_IMAGES = 5
# A run of other images adds in another order.
TOLERANCE = 1e-4


def with_graphs(folder: Path, graphs: Graphs, queue: DeviceQueue | None = None) -> Any:
    """Load a model whose images are run as on a GPU, and warm it up."""
    model: Any = load_torch_model(folder, dtype="f32")
    model.graphs = ImageGraphs(CPU, queue or StreamQueue(CPU), graphs, MAX_IMAGES)
    model.warm_up()
    return model


def plain(folder: Path) -> Any:
    model: Any = load_torch_model(folder, dtype="f32")
    model.warm_up()
    return model


def rows_of(model: Any, pixels: Array) -> Array:
    rows: Array = model.infer(TensorBatch({"pixel_values": pixels}))[model.spec.outputs[0].name]
    return rows


def pixels_of(model: Any, images: int, seed: int) -> Array:
    shape: tuple[int, ...] = model.image_processor.empty(images).shape
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@pytest.fixture(scope="module", params=["resnet", "vit"])
def late_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Random]:
    folder, random = tmp_path_factory.mktemp("late"), Random(0)
    save_image_classifier(folder, request.param)
    model = with_graphs(folder, SimulatedGraphs(CPU), LateQueue(random))
    assert model.spec.graphs == "up to 5 images"
    assert len(model.graphs._graphs.captured) == 4
    return model, plain(folder), random


@settings(max_examples=10, deadline=None)
@given(runs=st.lists(st.integers(1, MAX_IMAGES + 2), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_graphs_on_late_device_compute_rows(late_models: tuple[Any, Any, Random], runs: list[int], seed: int) -> None:
    """Whatever the run before it left in the buffers, and however late the device is."""
    model, other, random = late_models
    random.seed(seed)
    replays = model.graphs._graphs.num_replays
    for at, images in enumerate(runs):
        pixels = pixels_of(model, images, seed + at)
        np.testing.assert_allclose(rows_of(model, pixels), rows_of(other, pixels), rtol=TOLERANCE, atol=TOLERANCE)
    assert model.graphs._graphs.num_replays - replays == sum(images <= MAX_IMAGES for images in runs)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_two_towers_run_images_as_graphs(family: str, tmp_path: Path) -> None:
    save_two_towers(tmp_path, family)
    model, other = with_graphs(tmp_path, SimulatedGraphs(CPU)), plain(tmp_path)
    assert model.spec.graphs == "up to 5 images"
    pixels = pixels_of(model, 3, 7)
    np.testing.assert_allclose(rows_of(model, pixels), rows_of(other, pixels), rtol=TOLERANCE, atol=TOLERANCE)


def test_rows_outlive_next_run(tmp_path: Path) -> None:
    save_image_embedder(tmp_path, "vit")
    model = with_graphs(tmp_path, SimulatedGraphs(CPU))
    one, two = (pixels_of(model, 2, seed) for seed in (1, 2))
    with torch.inference_mode():
        rows = model.graphs.rows(one)
        kept = rows.clone()
        assert not torch.equal(model.graphs.rows(two), kept)
    assert torch.equal(rows, kept)


def test_next_run_waits_for_copy_of_pixels(tmp_path: Path) -> None:
    """A copy reads pinned memory when the device gets to it."""
    save_image_embedder(tmp_path, "vit")
    queue = LateQueue(Random(1))
    graphs: Any = with_graphs(tmp_path, SimulatedGraphs(CPU), queue).graphs
    shape, seen = graphs._pixels.host.shape[1:], []
    rows = graphs._captured[1][1]
    graphs._captured[1] = (lambda: seen.append(float(graphs._pixels.device[0].mean())), rows)
    # torch's operators follow on a GPU; here they would have to run at once.
    queue.catch_up = lambda: None  # type: ignore[method-assign]
    for at in range(20):
        graphs.rows(np.full((1, *shape), at, np.float32))
    queue.mark().synchronize()
    assert seen == list(range(20))
    assert queue.num_late > 10


def test_model_that_waits_runs_without_graphs(tmp_path: Path) -> None:
    """Swin2SR and others read a value of the device; the run says so before a capture."""
    save_image_embedder(tmp_path, "vit")
    model: Any = load_torch_model(tmp_path, dtype="f32")
    rows = model._rows
    model._rows = lambda pixels: rows(pixels) * (1 if pixels.sum().item() > -1 else 2)
    model.graphs = ImageGraphs(CPU, StreamQueue(CPU), SimulatedGraphs(CPU), MAX_IMAGES)
    memory_bytes = model.spec.memory_bytes
    model.warm_up()
    assert model.spec.graphs == "none: a step waits for the device: item"
    assert model.spec.memory_bytes == memory_bytes
    assert model.graphs._graphs.captured == []
    pixels = pixels_of(model, 3, 7)
    np.testing.assert_allclose(rows_of(model, pixels), rows_of(plain(tmp_path), pixels), rtol=TOLERANCE, atol=TOLERANCE)


def test_memory_counts_graphs_and_pixels(tmp_path: Path) -> None:
    class Large(SimulatedGraphs):
        def capture(self, compute: Any) -> Any:
            self.size_bytes += 1000
            return super().capture(compute)

    save_image_classifier(tmp_path, "resnet")
    model, other = with_graphs(tmp_path, Large(CPU)), plain(tmp_path)
    pixels = pixels_of(model, MAX_IMAGES, 0)
    assert model.spec.memory_bytes - other.spec.memory_bytes == 4 * 1000 + pixels.nbytes


@pytest.mark.parametrize("family", ["resnet", "vit", "convnext", "swin", "dinov2", "mobilenet_v2", "efficientnet"])
def test_runs_read_no_values(family: str, tmp_path: Path) -> None:
    """On a device without values."""
    save_classifier(tmp_path, family)
    model: Any = load_torch_model(tmp_path, dtype="f32", kernels="plain")
    pixels = torch.zeros(model.image_processor.empty(2).shape, device=META)
    model._model.to(META)
    with torch.inference_mode(), recording(META), OnDevice():  # type: ignore[no-untyped-call]
        rows = model._rows(pixels)
    assert len(rows) == 2
