"""Load a draft model: what it needs, which folders and files are accepted, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.registry import TorchRegistry
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import NO_COPIES
from tests.frameworks.pytorch.generation.generating import (
    load_generating,
    never_stop_proposing,
    request,
    tokens_of,
)
from tests.frameworks.pytorch.generation.test_speculation import with_counts
from tests.support.fake_probe import GIB
from tests.support.gguf_files import save_gguf
from tests.support.models.causal_folders import byte_tokenizer, save_causal_model
from tests.support.models.text_files import change_json
from tests.support.models.torch_folders import rewrite_weights, save_classifier

PROMPT = [ord(each) for each in "engines wait for steam"]
HOST = Device("cpu", 0, "cpu", 0, 0)


@pytest.fixture(scope="module")
def folder(made_once: FolderMaker) -> Path:
    return made_once(save_causal_model)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("small"), num_hidden_layers=1)


def entry_of(folder: Path, draft_model: Path | None, **more: Any) -> TorchModelEntry:
    return TorchModelEntry(name="m", path=folder, draft_model=draft_model, **{"max_batch_size": 4} | more)


def registry(max_model_bytes: int = GIB) -> TorchRegistry:
    return TorchRegistry(PerformanceSettings(intra_op_threads=1), max_model_bytes, NO_COPIES)


def needs(entry: TorchModelEntry) -> tuple[int, int]:
    assert isinstance(entry.path, Path)
    found = registry().needs(entry, entry.path)
    return found.host_bytes, found.accelerator_bytes


def refusal(folder: Path, draft_model: Path, max_model_bytes: int = GIB, **more: Any) -> str:
    with pytest.raises(InvalidModel) as refused:
        registry(max_model_bytes).load(entry_of(folder, draft_model, **more), folder, HOST)
    return refused.value.message


def test_memory_has_weights_and_texts_of_draft(folder: Path, small: Path) -> None:
    """The draft model has a block more for each text than the model."""
    plain: GeneratingModel = load_generating(folder, max_batch_size=4)
    alone: GeneratingModel = load_generating(small, max_batch_size=4)
    both: GeneratingModel = load_generating(folder, max_batch_size=4, draft_model=small)
    assert plain._parts is not None
    assert alone._parts is not None
    block_bytes = alone._parts.runner.block_bytes
    more_blocks = 2 * 4
    assert both.spec.memory_bytes == plain.spec.memory_bytes + alone.spec.memory_bytes + more_blocks * block_bytes
    host, accelerator = needs(entry_of(folder, small, dtype="f32"))
    plain_host, plain_accelerator = needs(entry_of(folder, None, dtype="f32"))
    small_host, small_accelerator = needs(entry_of(small, None, dtype="f32"))
    assert host == plain_host + small_host + more_blocks * block_bytes
    assert accelerator == plain_accelerator + small_accelerator + more_blocks * block_bytes


def test_texts_of_draft_follow_the_cache_of_model(folder: Path, small: Path) -> None:
    sizes = [needs(entry_of(folder, small, kv_cache_bytes=blocks * 32 * 512))[0] for blocks in (8, 12)]
    # Two layers of the model and one of the draft model.
    assert sizes[1] - sizes[0] == 4 * 32 * (512 + 256)


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_gguf_file_is_a_draft_model(tmp_path: Path, kind: str) -> None:
    """The model is a folder; both have the same tokens."""
    file = save_gguf(tmp_path / "draft", kind, hidden_size=256, intermediate_size=256)
    other = save_gguf(tmp_path / "model", "F32", hidden_size=256, intermediate_size=256)
    plain: GeneratingModel = load_generating(other, cache_dir=tmp_path)
    model: GeneratingModel = load_generating(other, cache_dir=tmp_path, draft_model=file)
    never_stop_proposing(model)
    tokens, proposed, accepted = with_counts(model, request(1, PROMPT, 40))
    assert tokens == tokens_of(plain, request(1, PROMPT, 40))
    assert proposed > 20
    assert accepted > proposed / 2, "the weights are nearly the same"


def test_int8_applies_to_both(folder: Path, small: Path) -> None:
    both: GeneratingModel = load_generating(folder, max_batch_size=4, draft_model=small, dtype="int8", min_cosine=0.5)
    plain: GeneratingModel = load_generating(folder, max_batch_size=4, draft_model=small, dtype="f32")
    assert both.spec.dtype == "int8"
    assert both.spec.memory_bytes < plain.spec.memory_bytes


def test_other_vocabulary_is_refused_with_both_sizes(folder: Path, tmp_path: Path) -> None:
    other = save_causal_model(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(other)
    message = refusal(folder, other)
    assert "draft_model: expected the 257 tokens of the model, got 259 tokens; choose a draft model with" in message


def test_other_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    other = save_causal_model(tmp_path / "other")
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"?a"').replace('"b"', '"a"').replace('"?a"', '"b"'))
    assert "expected the 257 tokens of the model, got 257 tokens with other ids" in refusal(folder, other)


def test_draft_model_of_integers_is_refused(folder: Path, tmp_path: Path) -> None:
    draft = save_causal_model(tmp_path, num_hidden_layers=1)
    rewrite_weights(draft, model__norm__weight=torch.ones(64, dtype=torch.int64))
    assert "model.norm.weight: expected a weight of floating point (F32, F16, BF16), got I64" in refusal(folder, draft)


def test_unfit_draft_models_are_refused(folder: Path, small: Path, tmp_path: Path) -> None:
    assert "draft_model: " in refusal(folder, tmp_path / "absent")
    classifier = save_classifier(tmp_path / "classifier")
    assert "draft_model: expected a language model, got Bert" in refusal(folder, classifier)
    assert "draft_model: expected only for models that generate text" in refusal(classifier, small)
    unpaged = save_causal_model(tmp_path / "mamba", "mamba")
    assert "draft_model: expected a model that paged attention serves, got one where it has" in refusal(folder, unpaged)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    larger = save_causal_model(tmp_path / "larger", intermediate_size=400)
    assert "max_model_size" in refusal(folder, larger, max_model_bytes=size + 1)


def test_damaged_draft_model_is_named(folder: Path, tmp_path: Path) -> None:
    broken = save_causal_model(tmp_path / "broken")
    change_json(broken / "config.json", num_hidden_layers=3)
    assert str(broken) in refusal(folder, broken)


def test_unpaged_model_serves_without_its_draft(small: Path, tmp_path: Path) -> None:
    unpaged = save_causal_model(tmp_path / "mamba", "mamba")
    model: GeneratingModel = load_generating(unpaged, draft_model=small)
    plain: GeneratingModel = load_generating(unpaged)
    assert model._parts is not None
    assert model._parts.speculation is None
    assert model.spec.memory_bytes == plain.spec.memory_bytes
    assert len(tokens_of(model, request(1, PROMPT, 5))[1]) == 5


def test_warm_up_runs_with_draft_model(folder: Path, small: Path) -> None:
    model: GeneratingModel = load_generating(folder, draft_model=small)
    model.warm_up()
    model.check_integrity()
    model.close()
