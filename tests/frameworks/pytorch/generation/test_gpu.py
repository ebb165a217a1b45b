"""The same models on a CUDA device."""

import gc
from typing import Any

import pytest
import torch

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.registry import TorchRegistry
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import GIB, NO_COPIES
from tests.frameworks.pytorch.generation.generating import ids_of, load_generating, request
from tests.support.models.causal_folders import END_ID, save_causal_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch can drive"),
]

PROMPTS = [[(7 * i + j) % 250 for j in range(length)] for i, length in enumerate((1, 31, 33, 70, 120, 120))]


def _load_there(folder: Any, **entry: Any) -> Any:
    registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
    settings = TorchModelEntry(name="m", path=folder, device="cuda", **entry)
    device = DeviceManager(SystemProbe()).candidates("m", registry.needs(settings, folder))[0]
    assert device.kind == "cuda"
    [model] = registry.load(settings, folder, device)
    model.warm_up()
    return model


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gpt2", "gemma2"])
def test_greedy_texts_equal_cpu(made_once: FolderMaker, family: str) -> None:
    folder = made_once(save_causal_model, model_type=family)
    asked = [request(i, prompt, 12) for i, prompt in enumerate(PROMPTS)]
    assert ids_of(_load_there(folder, dtype="f32"), *asked) == ids_of(load_generating(folder), *asked)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_decodes_are_graphs(made_once: FolderMaker, family: str) -> None:
    """Texts join and leave, more than have a graph of their own."""
    folder = made_once(save_causal_model, model_type=family)
    model = _load_there(folder, dtype="f32", max_batch_size=12)
    assert model.spec.graphs == "up to 12 texts"
    asked = [request(i, PROMPTS[i % len(PROMPTS)], 3 + 5 * (i % 4)) for i in range(14)]
    assert ids_of(model, *asked) == ids_of(load_generating(folder), *asked)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "int8"])
def test_16_bit_dtypes_generate(made_once: FolderMaker, dtype: str) -> None:
    """The load compares their logits with those of the original."""
    model = _load_there(made_once(save_causal_model), dtype=dtype, min_cosine=0.9)
    texts = ids_of(model, *(request(i, prompt, 12, Sampling(top_p=0.9, seed=i)) for i, prompt in enumerate(PROMPTS)))
    assert [len(text) for text in texts.values()] == [12] * len(PROMPTS)


def test_preempted_texts_continue(made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model)
    roomy, narrow = _load_there(folder, dtype="f32"), _load_there(folder, dtype="f32", kv_cache_bytes=10 * 32 * 512)
    asked = [request(i, prompt, 60, Sampling(seed=i)) for i, prompt in enumerate(PROMPTS)]
    assert ids_of(narrow, *asked) == ids_of(roomy, *asked)
    assert narrow.step().stats.preemptions > 0


def test_constraint_holds_on_gpu(made_once: FolderMaker) -> None:
    model = _load_there(made_once(save_causal_model))
    matcher = model.constrain(Constraint("regex", "[a-z]{3} [0-9]{2}"))
    ids = ids_of(model, request(1, PROMPTS[1], 20, matcher=matcher, stop_token_ids=frozenset({END_ID})))[1]
    text = model.tokenizer.decode(tuple(ids))
    assert len(text) == 6
    assert text[:3].isalpha()
    assert text[4:].isdigit()


def test_unload_frees_device_memory(made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model)
    _load_there(folder).close()
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = _load_there(folder)
    assert torch.cuda.memory_allocated() - before >= 4 * 2**20
    model.close()
    del model
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two CUDA devices")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_ranks_have_equal_texts(made_once: FolderMaker, family: str) -> None:
    """By NCCL, without graphs; in the process of the tests, which a hang of NCCL would end."""
    folder = made_once(save_causal_model, model_type=family)
    registry = TorchRegistry(PerformanceSettings(), GIB, NO_COPIES)
    settings = TorchModelEntry(name="m", path=folder, device="cuda", dtype="f32", tensor_parallel=2)
    assert registry.needs(settings, folder).wanted == ("cuda:0", "cuda:1")
    [device] = [each for each in DeviceManager(SystemProbe()).devices() if each.id == "cuda:0"]
    [model] = registry.load(settings, folder, device)
    assert isinstance(model, GeneratingModel)
    try:
        model.warm_up()
        assert model.spec.device == "cuda:0,cuda:1"
        assert model.spec.generation is not None
        assert model.spec.graphs == "none: tensor_parallel runs each step layer by layer"
        asked = [request(i, prompt, 12) for i, prompt in enumerate(PROMPTS)]
        assert ids_of(model, *asked) == ids_of(load_generating(folder), *asked)
    finally:
        model.close()
