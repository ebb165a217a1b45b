"""The same folders on a CUDA device."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.errors import OutOfMemory
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch.device.pinned import PINNED, PinnedBuffers
from frameworks.pytorch.registry import TorchRegistry
from frameworks.text.pooling import normalize_rows
from frameworks.types import TEXT_OUTPUT, TensorBatch, TokenBatch
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import (
    GIB,
    NO_COPIES,
    answered_through_a_dispatcher,
    load_torch,
    load_torch_model,
    placed,
    rows_of,
)
from tests.support.alike import check_alike
from tests.support.models.text_files import TEXTS, write_sentence_transformers
from tests.support.models.torch_folders import FAMILIES, Family, save_classifier, save_embedder
from tests.support.models.vision_folders import save_image_classifier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch can drive"),
]


class TestNumbers:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_f16_embeddings_are_near_cpu(self, copied: FolderMaker, family: Family, pooling: str) -> None:
        folder = copied(save_embedder, family=family)
        write_sentence_transformers(folder, pooling)
        there, here = load_torch(folder, gpu=True, device="cuda"), load_torch(folder, device="cpu")
        there.warm_up()
        assert there.spec.device.startswith("cuda:")
        assert (there.spec.dtype, here.spec.dtype) == ("float16", "float32")
        difference = normalize_rows(rows_of(there, list(TEXTS))) - normalize_rows(rows_of(here, list(TEXTS)))
        assert np.abs(difference).max() < 1e-2
        # MPNet has an attention of its own.
        assert (there.spec.graphs or "").startswith("none: texts are padded" if family == "mpnet" else "up to ")

    @pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-3), ("f16", 1e-1), ("bf16", 5e-1)])
    def test_logits_are_near_cpu(self, made_once: FolderMaker, dtype: str, tolerance: float) -> None:
        folder = made_once(save_classifier)
        there = rows_of(load_torch(folder, gpu=True, device="cuda", dtype=dtype), list(TEXTS))
        assert np.abs(there - rows_of(load_torch(folder), list(TEXTS))).max() < tolerance

    def test_auto_device_keeps_bfloat16_file(self, made_once: FolderMaker) -> None:
        spec = load_torch(made_once(save_embedder, dtype="bf16"), gpu=True).spec
        assert spec.device.startswith("cuda:")
        assert spec.dtype == "bfloat16"

    @pytest.mark.parametrize("family", ["resnet", "vit", "convnext"])
    def test_image_graphs_are_near_cpu(self, tmp_path: Path, family: str) -> None:
        save_image_classifier(tmp_path, family)
        there, here = load_image(tmp_path, device="cuda", gpu=True), load_image(tmp_path)
        assert there.spec.graphs == "up to 32 images"
        for images in (1, 3, 32, 33):
            pixels = np.random.default_rng(images).random(there.image_processor.empty(images).shape, dtype=np.float32)
            rows, wanted = (each.infer(TensorBatch({"pixel_values": pixels}))["logits"] for each in (there, here))
            assert np.abs(rows - wanted).max() < 5e-2 * np.abs(wanted).max()


def load_image(folder: Path, **options: Any) -> Any:
    model = load_torch_model(folder, **options)
    model.warm_up()
    return model


class TestPinned:
    def test_pinned_buffer_is_known_to_driver(self) -> None:
        pool = TensorPool(MemorySettings())
        pool.add_device(PINNED, PinnedBuffers())
        with pool.lease((3, 5), np.dtype(np.int64), PINNED) as lease:
            assert torch.from_numpy(lease.array).is_pinned()

    def test_pinned_tokens_give_same_rows_without_allocation(self, made_once: FolderMaker) -> None:
        folder, pool = made_once(save_embedder), TensorPool(MemorySettings())
        devices = DeviceManager(SystemProbe())
        performance = PerformanceSettings()
        entry = TorchModelEntry(name="m", path=folder, device="cuda:0", dtype="f32")
        through, plain = (
            placed(TorchRegistry(performance, GIB, NO_COPIES, pool=each), entry, folder, devices)
            for each in (pool, None)
        )
        for seed in range(50):
            random = np.random.default_rng(seed)
            texts = [TEXTS[i] for i in random.integers(0, len(TEXTS), 8)]
            check_alike(rows_of(through, texts), rows_of(plain, texts))
        stats = pool.stats()[PINNED]
        assert (stats.leases, stats.misses, stats.hits) == (0, 2, 98)


class TestMemory:
    def test_unload_frees_device_memory(self, made_once: FolderMaker) -> None:
        folder = made_once(save_embedder)
        _answer_and_close(folder)  # the libraries of CUDA take a workspace of their own once
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(3):
            _answer_and_close(folder)
        gc.collect()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before

    def test_next_batch_runs_after_out_of_memory(self, made_once: FolderMaker) -> None:
        model = load_torch(made_once(save_embedder), gpu=True, device="cuda:0")
        model.warm_up()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + 2**20) / total, 0)
        try:
            with pytest.raises(OutOfMemory, match="a batch of 100000 texts of 40 tokens does not fit on cuda:0"):
                model.infer(TokenBatch([[2] * 40] * 100_000))
            assert np.isfinite(rows_of(model, ["the cat"])).all()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)

    def test_batch_that_does_not_fit_is_halved(self, made_once: FolderMaker) -> None:
        """Each row takes 16 MiB more than the tiny model needs, and there is room for about 80."""
        folder = made_once(save_embedder)
        model, on_cpu = load_torch(folder, gpu=True, device="cuda:0", dtype="f32"), load_torch(folder, device="cpu")
        model.warm_up()
        assert model._model is not None

        def take(_: object, __: object, inputs: dict[str, torch.Tensor]) -> None:
            torch.empty(len(inputs["input_ids"]) << 24, dtype=torch.uint8, device="cuda:0")

        model._model.register_forward_pre_hook(take, with_kwargs=True)
        texts = [[2, *[5 + i % 3] * 38, 3] for i in range(1023)]
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + (80 << 24)) / total, 0)
        try:
            rows, split = asyncio.run(answered_through_a_dispatcher(model, TokenBatch(texts)))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
        assert split.total() >= 1
        assert min(split) > 64, "what fits is not split"
        expected = np.asarray(on_cpu.infer(TokenBatch(texts[:3]))[TEXT_OUTPUT])
        assert rows.shape == (1023, expected.shape[1])
        assert np.abs(rows.reshape(341, 3, -1) - expected).max() < 1e-3


def _answer_and_close(folder: Path) -> None:
    model = load_torch(folder, gpu=True, device="cuda:0")
    rows_of(model, list(TEXTS))
    model.close()
