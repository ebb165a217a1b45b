"""Keys and values of another type than the model's: their memory, and how near the logits are."""

from typing import Any

import pytest
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.registry import TorchRegistry
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import NO_COPIES
from tests.frameworks.pytorch.generation.generating import load_generating, request
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.models.causal_folders import save_causal_model
from tests.support.models.torch_folders import save_embedder


def runner_of(model: GeneratingModel) -> Any:
    assert model._parts is not None
    return model._parts.runner


def logits_of(model: GeneratingModel) -> torch.Tensor:
    """Return the logits after a prompt of 40 tokens, and after one more."""
    runner = runner_of(model)
    sequence = Sequence(request(0, [3 + place % 7 for place in range(41)]), 0.0)
    sequence.blocks = [0, 1]
    parts = [StepPart(sequence, 0, 40, is_scored=True), StepPart(sequence, 40, 1)]
    with torch.inference_mode():
        rows = [runner.compute([part])[-1:].clone() for part in parts]
    return torch.cat(rows).float()


@pytest.mark.isa
@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bf16", 0.1), ("f16", 0.02)])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_16_bit_keys_and_values_are_near(made_once: FolderMaker, family: str, kv_dtype: str, tolerance: float) -> None:
    """They are rounded to 8 or 11 bits; errors are relative to the spread of the logits."""
    folder = made_once(save_causal_model, model_type=family)
    wide, narrow = load_generating(folder), load_generating(folder, kv_cache_dtype=kv_dtype)
    assert narrow.spec.dtype == "float32"
    assert narrow.spec.generation is not None
    assert narrow.spec.generation.unpaged_because is None
    saved = wide.spec.memory_bytes - narrow.spec.memory_bytes
    assert saved == runner_of(wide).cache.size_bytes - runner_of(narrow).cache.size_bytes > 0
    expected, found = logits_of(wide), logits_of(narrow)
    assert 0 < float((found - expected).abs().max()) < tolerance * float(expected.std())


def test_16_bit_cache_holds_twice_the_tokens(made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model)
    wide, narrow = (load_generating(folder, kv_cache_bytes=1 << 16, kv_cache_dtype=each) for each in ("auto", "bf16"))
    assert runner_of(narrow).cache.blocks == 2 * runner_of(wide).cache.blocks


def test_need_follows_type_of_cache(made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model)
    registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
    model = load_generating(folder, kv_cache_dtype="bf16")
    entry = TorchModelEntry(name="m", path=folder, dtype="f32", kv_cache_dtype="bf16")
    assert registry.needs(entry, folder).host_bytes == pytest.approx(model.spec.memory_bytes, rel=0.05)


@pytest.mark.parametrize(("key", "value"), [("kv_cache_dtype", "bf16"), ("dtype", "int4")])
def test_keys_of_language_models_refused_for_encoders(made_once: FolderMaker, key: str, value: str) -> None:
    folder = made_once(save_embedder)
    entry = TorchModelEntry(name="m", path=folder, **{key: value})  # type: ignore[arg-type]
    registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
    with pytest.raises(InvalidModel, match=f"{key}: expected .*only for models that generate text"):
        registry.load(entry, folder, FakeProbe().host())
