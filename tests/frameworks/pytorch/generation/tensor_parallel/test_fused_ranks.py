"""Rank 0 computes by the fused kernels of a device, by Triton's interpreter, beside a rank that computes on the CPU."""

from typing import Any

import pytest

from frameworks.pytorch.generation.decoders.fused_llama import FusedLlamaDecoder
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import ids_of, load_generating, request
from tests.frameworks.pytorch.generation.test_device_step import load_on_device
from tests.support.kernel_device import IS_INTERPRETED
from tests.support.models.causal_folders import save_causal_model

pytest.importorskip("triton", reason="Triton has packages for Linux only")

pytestmark = [
    pytest.mark.skipif(not IS_INTERPRETED, reason="test_gpu.py loads models on the device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

# No step has more rows than those that a CPU computes without padding.
ASKED = [request(i, [(7 * i + j) % 250 for j in range(length)], 5) for i, length in enumerate((1, 14))]


def test_fused_layers_add_up_ranks(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_once(save_causal_model)
    model = load_on_device(folder, monkeypatch, tensor_parallel=2)
    try:
        runner: Any = model._parts.runner
        assert isinstance(runner._runner.decoder, FusedLlamaDecoder)
        assert runner._runner.layouts.makes_tables
        texts = ids_of(model, *ASKED)
    finally:
        model.close()
    assert texts == ids_of(load_generating(folder, kernels="plain"), *ASKED)
