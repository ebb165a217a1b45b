"""Test what is applied to the logits of cross-encoders against sentence-transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks.core.errors import InvalidModel
from frameworks.text.config import read_text_config
from frameworks.text.pair_scores import read_scores_are_logits
from tests.frameworks.conftest import FolderMaker
from tests.support.models.text_files import change_json, write_json
from tests.support.models.torch_folders import save_classifier

IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
OTHER = "package.module.Function"

Keys = Mapping[str, object]


def written(folder: Path, config: Keys, model: Keys | None = None) -> Path:
    """Write the keys into config.json, and into the files of a folder with modules."""
    change_json(folder / "config.json", **config)
    if model is not None:
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
        write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder", **model})
        write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    return folder


@pytest.mark.parametrize(
    ("config", "model", "logits"),
    [
        ({}, None, False),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, True),
        ({"sbert_ce_default_activation_function": SIGMOID}, None, False),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, None, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, None, True),
        (
            {"sentence_transformers": {"activation_fn": SIGMOID}, "sbert_ce_default_activation_function": IDENTITY},
            None,
            False,
        ),
        (
            {"sentence_transformers": {"activation_fn": None}, "sbert_ce_default_activation_function": IDENTITY},
            None,
            False,
        ),
        ({"sentence_transformers": {"version": "5"}, "sbert_ce_default_activation_function": IDENTITY}, None, True),
        ({"sentence_transformers": {"activation_fn": OTHER}}, None, False),
        ({}, {"activation_fn": IDENTITY}, True),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": SIGMOID}, False),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": OTHER}, True),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": None}, True),
    ],
)
def test_activation_of_files_equals_cross_encoder(
    copied: FolderMaker, config: Keys, model: Keys | None, logits: bool
) -> None:
    from sentence_transformers import CrossEncoder

    folder = written(copied(save_classifier, labels=("relevant",)), config, model)
    reference: Any = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    assert isinstance(reference.activation_fn, torch.nn.Identity) is logits
    assert read_text_config(folder).scores_are_logits is logits


@pytest.mark.parametrize("named", ["torch.nn.Tanh", "torch.nn.modules.activation.Softmax", "torch.Identity", "torch."])
def test_other_activation_is_refused_by_key(tmp_path: Path, named: str) -> None:
    for key, config in (
        ("sentence_transformers.activation_fn", {"sentence_transformers": {"activation_fn": named}}),
        ("sbert_ce_default_activation_function", {"sbert_ce_default_activation_function": named}),
    ):
        with pytest.raises(InvalidModel, match=f"{key}: expected torch.nn.Identity or torch.nn.Sigmoid, got {named}"):
            read_scores_are_logits(config, {}, tmp_path)


def test_activation_of_several_labels_has_no_effect(tmp_path: Path) -> None:
    """Their scores are those of transformers' pipeline."""
    labels = {"0": "no", "1": "yes"}
    config = {"architectures": ["BertForSequenceClassification"], "id2label": labels}
    write_json(tmp_path / "config.json", {**config, "sentence_transformers": {"activation_fn": IDENTITY}})
    assert not read_text_config(tmp_path).scores_are_logits
