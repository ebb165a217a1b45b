"""Run image requests on an engine with a small graph, in this process and behind the channel of a process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run, RunCounts
from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.process.wire.messages import Answer, Failed
from frameworks.engine.process.wire.serialization import answer_from_plain, request_from_plain
from frameworks.engine.threads import LARGE_PIXELS, EngineThreads, ImageThreads
from frameworks.images.processor import ImageProcessor, Preparation
from frameworks.images.spec import ImageRequest
from frameworks.onnx.model import OnnxModel
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.types import Array, ClassifyAnswer, EmbedAnswer, TextRequest
from tests.frameworks.models.loading import load_onnx
from tests.support.engine_hosts import SETTINGS, FakeSource, hosted
from tests.support.images import encoded, photo
from tests.support.loops import in_loop, task
from tests.support.models import onnx_graphs
from tests.support.models.onnx_images import pooled, reference

LABELS = ("ant", "bee", "cat", "dog")
PHOTOS = [photo(16, 16, seed) for seed in range(5)]
FILES = [encoded(each, "PNG") for each in PHOTOS]
TABLE = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.3]}
PIXELS: Array = ((np.stack(PHOTOS) / 255 - TABLE["mean"]) / TABLE["std"]).transpose(0, 3, 1, 2)
LOGITS = reference(PIXELS)


def model_of(folder: Path, graph: Any = None, **table: Any) -> OnnxModel:
    path = onnx_graphs.save(pooled() if graph is None else graph, folder)
    model = load_onnx(path, image=TABLE | table)
    assert isinstance(model, OnnxModel)
    model.warm_up()
    return model


@asynccontextmanager
async def serving(model: OnnxModel) -> AsyncIterator[LocalEngine]:
    threads = EngineThreads()
    engine = start_local_engine(SETTINGS, [model], RunCounts(), SharedDevice(), threads)
    try:
        yield engine
    finally:
        await engine.close()
        threads.close()


async def ask(engine: LocalEngine, *files: bytes, timings: Timings | None = None, **options: Any) -> Any:
    run = Run(Permit(RequestLimit("the server", None, None)), timings or Timings())
    return await engine.answer(run, ImageRequest(list(files), **options))


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    rows: Array = powers / powers.sum(axis=1, keepdims=True)
    return rows


def by_label(answer: Any) -> Array:
    """Return the scores in the order of the labels."""
    assert isinstance(answer, ClassifyAnswer)
    for row in answer.predictions:
        assert [score for _, score in row] == sorted((score for _, score in row), reverse=True)
    return np.array([[dict(row)[label] for label in LABELS] for row in answer.predictions])


@pytest.mark.parametrize(
    ("graph", "raw", "expected"),
    [
        (pooled(), False, softmax(LOGITS)),
        (pooled(), True, LOGITS),
        (pooled(activation="Softmax"), False, softmax(LOGITS)),
        (pooled((1, 3, 16, 16)), False, softmax(LOGITS)),
    ],
    ids=["logits", "raw", "softmax in the graph", "one row at a time"],
)
@in_loop
async def test_labels_scored_as_reference(graph: Any, raw: bool, expected: Array, tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, graph, labels=LABELS)) as engine:
        timings = Timings()
        answer = await ask(engine, *FILES, raw_scores=raw, timings=timings)
        np.testing.assert_allclose(by_label(answer), expected, atol=1e-5)
        assert timings.decode_s > 0
        assert timings.compute_s > 0
        best = await ask(engine, FILES[1], top_k=2)
        assert [label for label, _ in best.predictions[0]] == [LABELS[i] for i in np.argsort(-expected[1])[:2]]
        assert await ask(engine) == ClassifyAnswer([])


@in_loop
async def test_embeddings_normalized_and_cut(tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, pooled(output="image_embeds"))) as engine:
        plain = await ask(engine, *FILES, normalize=False)
        assert isinstance(plain, EmbedAnswer)
        assert plain.tokens == 0
        np.testing.assert_allclose(plain.embeddings, LOGITS, atol=1e-5)
        cut = (await ask(engine, *FILES, dimensions=2)).embeddings
        expected = LOGITS[:, :2] / np.linalg.norm(LOGITS[:, :2], axis=1, keepdims=True)
        np.testing.assert_allclose(cut, expected, atol=1e-5)


@in_loop
async def test_tensor_model_returns_its_outputs(tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, pooled(output="y"))) as engine:
        np.testing.assert_allclose((await ask(engine, *FILES))["y"], LOGITS, atol=1e-5)
        with pytest.raises(InvalidInput, match="image: expected at least one image"):
            await ask(engine)


@in_loop
async def test_rows_of_several_requests_share_batches(tmp_path: Path) -> None:
    model = model_of(tmp_path, labels=LABELS)
    async with serving(model) as engine:
        answers = await asyncio.gather(*(ask(engine, each, FILES[0]) for each in FILES * 4))
        for number, answer in enumerate(answers):
            np.testing.assert_allclose(by_label(answer), softmax(LOGITS)[[number % 5, 0]], atol=1e-5)


@in_loop
async def test_damaged_file_named_and_others_answered(tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, labels=LABELS)) as engine:
        with pytest.raises(InvalidInput) as raised:
            await ask(engine, *FILES[:3], FILES[3][:50])
        assert raised.value.field == "image[3]"
        with pytest.raises(
            InvalidInput,
            match=r"image\[0\]: expected a file in JPEG, PNG, .*, got other bytes",
        ):
            await ask(engine, b"words")
        assert len((await ask(engine, *FILES)).predictions) == 5


@in_loop
async def test_model_without_images_refuses_them(tmp_path: Path) -> None:
    model = load_onnx(onnx_graphs.save(pooled(), tmp_path))
    assert isinstance(model, OnnxModel)
    async with serving(model) as engine:
        with pytest.raises(InvalidInput, match="image: expected a model that reads images, got one that reads tensors"):
            await ask(engine, FILES[0])


@in_loop
async def test_labels_of_another_number_fail_the_request(tmp_path: Path) -> None:
    model = model_of(tmp_path, labels=LABELS)
    assert model.spec.image is not None
    model.spec = replace(model.spec, image=replace(model.spec.image, labels=LABELS[:3]))
    async with serving(model) as engine:
        with pytest.raises(ModelFailed, match="each of 3 labels, got 4"):
            await ask(engine, FILES[0])


@in_loop
async def test_cancelled_request_harms_no_other(tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, labels=LABELS)) as engine:
        requests = [task(ask(engine, *FILES)) for _ in range(6)]
        await asyncio.sleep(0)
        for each in requests[::2]:
            each.cancel()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if number % 2:
                np.testing.assert_allclose(by_label(outcome), softmax(LOGITS), atol=1e-5)
            else:
                assert isinstance(outcome, asyncio.CancelledError)


@in_loop
async def test_request_answered_by_hosted_engine(tmp_path: Path) -> None:
    async with hosted(FakeSource(model_of(tmp_path, labels=LABELS))) as link:
        loaded = await link.load()
        assert loaded.spec["image"]["labels"] == list(LABELS)
        link.infer(ImageRequest(FILES, top_k=4))
        answer = answer_from_plain((await link.next(Answer)).answer)
        np.testing.assert_allclose(by_label(answer), softmax(LOGITS), atol=1e-5)
        link.infer(ImageRequest([b"words"]))
        assert (await link.next(Failed)).error.field == "image[0]"


def test_request_sent_keeps_its_types() -> None:
    plain = ["ImageRequest", {"images": FILES, "output_names": ["y"], "normalize": None}]
    assert request_from_plain(plain) == ImageRequest(FILES, output_names=("y",))


@in_loop
async def test_large_images_decoded_one_by_one() -> None:
    seen: list[str] = []
    running: list[int] = [0, 0]

    class Recording(ImageProcessor):
        def read(self, *arguments: Any) -> None:
            seen.append(threading.current_thread().name)
            running[0] += 1
            running[1] = max(running)
            super().read(*arguments)
            running[0] -= 1

    threads = ImageThreads()
    try:
        processor = Recording(Preparation(size=(4, 4)), (4, 4))
        side = int(LARGE_PIXELS**0.5) + 1
        large = encoded(np.zeros((side, side, 3), np.uint8), "PNG", compress_level=1)
        rows = await threads.prepare(processor, [large] * 3)
        assert rows.shape == (3, 3, 4, 4)
        assert all(name.startswith("image-large") for name in seen)
        assert running[1] == 1
    finally:
        threads.close()


@in_loop
async def test_text_for_an_image_model_refused(tmp_path: Path) -> None:
    async with serving(model_of(tmp_path, labels=LABELS)) as engine:
        run = Run(Permit(RequestLimit("the server", None, None)), Timings())
        with pytest.raises(InvalidInput, match="text: expected a model that reads text"):
            await engine.answer(run, TextRequest(["a"]))
