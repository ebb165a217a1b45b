"""Test that the tokenizer classes of all families decide as in transformers."""

from typing import Any

import pytest
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from frameworks.text.tokenizer_class import gives_token_types, tokenizer_class_of

GENERIC = "PreTrainedTokenizerFast"


def transformers_gives_types(name: str) -> bool | None:
    """Return whether transformers' class returns token types; None for a class that needs another package."""
    try:
        found: Any = tokenizer_class_from_name(name)
        return "token_type_ids" in found.model_input_names
    except (ImportError, AttributeError):
        return None


@pytest.mark.extended
def test_token_types_of_families_equal_transformers() -> None:
    wanted = {family: transformers_gives_types(name) for family, name in TOKENIZER_MAPPING_NAMES.items() if name}
    known = {family: types for family, types in wanted.items() if types is not None}
    assert sum(known.values()) > 30
    assert {family: gives_token_types({"model_type": family}, {}) for family in known} == known


@pytest.mark.extended
@pytest.mark.parametrize("suffix", ["", "Fast"])
def test_token_types_of_classes_equal_transformers(suffix: str) -> None:
    names = {*filter(None, TOKENIZER_MAPPING_NAMES.values()), "ElectraTokenizer", "ConvBertTokenizer"}
    for name in sorted(each.removesuffix("Fast") for each in names):
        types = transformers_gives_types(name)
        if types is not None:
            assert gives_token_types({}, {"tokenizer_class": name + suffix}) is types, name


@pytest.mark.parametrize(
    ("config", "tokenizer", "name"),
    [
        ({"model_type": "bert"}, {}, "BertTokenizer"),
        ({"model_type": "bert"}, {"tokenizer_class": "RobertaTokenizerFast"}, "RobertaTokenizer"),
        ({"model_type": "bert", "tokenizer_class": "ElectraTokenizer"}, {}, "ElectraTokenizer"),
        ({"model_type": "bert"}, {"tokenizer_class": GENERIC}, ""),
        ({"model_type": "nystromformer"}, {"tokenizer_class": "BertTokenizer"}, ""),
        ({}, {}, ""),
    ],
)
def test_tokenizer_class_is_stated_or_of_family(config: dict[str, Any], tokenizer: dict[str, Any], name: str) -> None:
    assert tokenizer_class_of(config, tokenizer) == name


def test_token_types_without_class_are_given() -> None:
    """The model's inputs decide."""
    assert gives_token_types({}, {})
    assert not gives_token_types({}, {"tokenizer_class": GENERIC})
