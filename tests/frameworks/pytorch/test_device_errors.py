"""Errors of torch in the middle of a run, and the errors of the caller."""

import asyncio

import numpy as np
import pytest
import torch

from frameworks.core.errors import ModelFailed, OutOfMemory
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.types import TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import answered_through_a_dispatcher, load_torch
from tests.support.models.torch_folders import save_embedder

BATCH = TokenBatch([[2, 5, 3], [2, 5, 6, 3]])


@pytest.fixture
def model(made_once: FolderMaker) -> EncoderModel:
    return load_torch(made_once(save_embedder))


def test_cpu_allocation_failure_is_out_of_memory(model: EncoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(**_: object) -> None:
        torch.empty(2**48)

    assert model._model is not None
    monkeypatch.setattr(model._model, "forward", run_out)
    with pytest.raises(OutOfMemory, match="a batch of 2 texts of 4 tokens does not fit on cpu"):
        model.infer(BATCH)


def test_batch_that_does_not_fit_is_halved(model: EncoderModel) -> None:
    """Raise torch's allocation error for eight rows or more; each requests 32 TiB."""
    assert model._model is not None
    texts = TokenBatch([[2, *[5 + i % 3] * (1 + i % 5), 3] for i in range(200)])
    [expected] = model.infer(texts).values()

    def take(_: object, __: object, inputs: dict[str, torch.Tensor]) -> None:
        if len(inputs["input_ids"]) >= 8:
            torch.empty(len(inputs["input_ids"]) << 45, dtype=torch.uint8)

    model._model.register_forward_pre_hook(take, with_kwargs=True)
    rows, split = asyncio.run(answered_through_a_dispatcher(model, texts))
    assert np.abs(rows - expected).max() < 1e-5
    assert split
    assert min(split) >= 8, "what fits is not split"


def test_device_failure_fails_model(model: EncoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(**_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")

    assert model._model is not None
    monkeypatch.setattr(model._model, "forward", abort)
    # On a CPU it is a bug and stays unchanged.
    with pytest.raises(RuntimeError, match="illegal memory access"):
        model.infer(BATCH)
    monkeypatch.setattr(model, "_device", torch.device("meta"))
    with pytest.raises(ModelFailed, match=r"^the device failed: CUDA error: an illegal memory access was encountered$"):
        model.infer(BATCH)
