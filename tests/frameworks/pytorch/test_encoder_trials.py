"""Trials at load: whether padding changes a text, and how many positions a model has."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.types import Array, TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, load_torch_instances, rows_of
from tests.support.models.encoder_families import CHANGED_BY_PADDING, USABLE_POSITIONS, save_family
from tests.support.models.text_files import TEXTS
from tests.support.models.torch_folders import save_embedder

RAGGED = [*TEXTS, "the engine of steam runs on . " * 4]
_EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    "architecture",
    [name if name.startswith("FNet") else pytest.param(name, marks=_EXTENDED) for name in CHANGED_BY_PADDING],
)
def test_text_equals_transformers_beside_longer_texts(made_once: FolderMaker, architecture: str) -> None:
    folder = made_once(save_family, architecture=architecture)
    model = load_torch(folder)
    model.warm_up()
    assert model.spec.text is not None
    assert model.spec.text.unpadded_because == "the row of a padded text differs from its single run"
    reference = getattr(transformers, architecture).from_pretrained(str(folder), local_files_only=True).eval()
    assert model.tokenizer is not None
    for text, row in zip(RAGGED, rows_of(model, RAGGED), strict=True):
        [ids] = model.tokenizer.tokenize([text], truncate=True)
        with torch.inference_mode():
            output = reference(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
        if model.spec.task == "classify":
            expected = output.logits[0]
        else:
            pooled = getattr(output, "pooler_output", None)
            expected = output.last_hidden_state[0].mean(dim=0) if pooled is None else pooled[0]
        np.testing.assert_allclose(row, expected.numpy(), rtol=0, atol=1e-5)


def test_padding_stays_where_it_changes_nothing(made_once: FolderMaker) -> None:
    model = load_torch(made_once(save_embedder))
    model.warm_up()
    assert model.spec.text is not None
    assert model.spec.text.unpadded_because is None


def test_instances_share_one_trial(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = load_torch_instances(made_once(save_family, architecture="FNetModel"), instances=3)
    runs: list[int] = []
    unspied = EncoderModel._run

    def spy(model: EncoderModel, *arguments: Any) -> Array:
        runs.append(instances.index(model))
        return unspied(model, *arguments)

    monkeypatch.setattr(EncoderModel, "_run", spy)
    for instance in instances:
        instance.warm_up()
    assert runs.count(0) > 1
    assert (runs.count(1), runs.count(2)) == (1, 1)
    reasons = {instance.spec.text and instance.spec.text.unpadded_because for instance in instances}
    assert reasons == {"the row of a padded text differs from its single run"}


@pytest.mark.parametrize(
    "architecture",
    [name if name.startswith("Xmod") else pytest.param(name, marks=_EXTENDED) for name in USABLE_POSITIONS],
)
def test_limit_is_usable_positions(made_once: FolderMaker, architecture: str) -> None:
    model = load_torch(made_once(save_family, architecture=architecture))
    model.warm_up()
    assert model.spec.text is not None
    assert model.spec.text.max_tokens == USABLE_POSITIONS[architecture][0]
    assert model.tokenizer is not None
    token_ids = model.tokenizer.tokenize(["the " * 100], truncate=True)
    assert len(token_ids[0]) == model.spec.text.max_tokens
    [row] = model.infer(TokenBatch(token_ids)).values()
    assert np.isfinite(np.asarray(row)).all()
