"""Test the tables of docs/model-files.md: refused keys are refused by name, and the libraries read no others."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.generation.generation_config import default_sampling
from frameworks.images.processor_config import read_preparation
from frameworks.text.config import read_text_config
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers, write_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "model-files.md"
LOGIT_SCORE = {"path": "2_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}


def rows_of_page() -> dict[str, list[tuple[list[str], str]]]:
    """Return the rows of each table, by its heading: keys and effect."""
    tables: dict[str, list[tuple[list[str], str]]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        rows = re.findall(r"^\| (`.*?) \| (.*) \|$", body, re.MULTILINE)
        tables[heading] = [(re.findall(r"`([^`]+)`", keys), effect) for keys, effect in rows]
    return tables


TABLES = rows_of_page()
FILES = {"config.json of a module": "1_Pooling/config.json"}
# Rows whose refusals depend on more than the value: they have tests of their own.
CONDITIONAL = {"type", "modality_config", "processing_kwargs", "keep_accents", "split_by_punct", "problem_type",
               "add_prefix_space", "image_processor_type", "feature_extractor_type", "do_lower_case"}  # fmt: skip
# Keys that hold arguments, and one that is refused.
HOLDERS = {"model_kwargs", "model_args", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args"}


def refused() -> list[Any]:
    return [
        pytest.param(heading, key, effect, id=f"{heading}-{key}")
        for heading, rows in TABLES.items()
        for keys, effect in rows
        for key in keys
        if "refused" in effect and key not in CONDITIONAL
    ]


def allowed(effect: str) -> list[object]:
    """Return the values that a row excepts; an empty list where it excepts none."""
    if "except" not in effect or "except keys" in effect:
        return []
    found: list[object] = []
    for value in re.findall(r"`([^`]+)`", effect.partition("except")[2]):
        try:
            found.append(json.loads(value))
        except ValueError:
            continue
    return found


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, str, object], None]:
    """Write a key into a file of a folder, and read the file."""
    write_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"architectures": ["BertModel"], "model_type": "bert"})
    write_sentence_transformers(tmp_path)
    preparation = {"image_processor_type": "ViTImageProcessor"}

    def read(heading: str, key: str, value: object) -> None:
        if heading == "preprocessor_config.json":
            write_json(tmp_path / heading, {**preparation, key: value})
            read_preparation(tmp_path)
            return
        if heading == "generation_config.json":
            write_json(tmp_path / heading, {key: value})
            default_sampling(tmp_path)
            return
        of_normalize = key.startswith("module_") and heading in FILES
        name = "2_Normalize/config.json" if of_normalize else FILES.get(heading, heading)
        change_json(tmp_path / name, **{key: value})
        read_text_config(tmp_path)

    return read


@pytest.mark.parametrize(("heading", "key", "effect"), refused())
def test_refused_key_of_page_is_refused(
    read: Callable[[str, str, object], None], heading: str, key: str, effect: str
) -> None:
    served = [value for value in allowed(effect) if not (heading in FILES and value == "causal_logits")]
    for each in served:
        read(heading, key, each)
    value: object = {"unknown_key": 1} if key in HOLDERS else 7
    if served in ([False], [True]):
        value = not served[0]
    with pytest.raises(InvalidModel, match=re.escape(key)):
        read(heading, key, value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model_args", {"torch_dtype": "float16", "attn_implementation": "eager", "trust_remote_code": True}, ""),
        ("tokenizer_args", {"padding_side": "left"}, ""),
        ("tokenizer_args", {"model_max_length": 9}, "tokenizer_args.model_max_length"),
        ("processing_kwargs", {"text": {"padding": "longest"}}, ""),
        ("processing_kwargs", {"text": {"max_length": 9}}, "processing_kwargs.text.max_length"),
        ("processing_kwargs", {"common": {"truncation": True}}, "processing_kwargs.common.truncation"),
        ("modality_config", {"text": {"method": "forward"}}, ""),
        ("modality_config", {"text": {"method": "get_query"}}, "modality_config: expected texts read by forward"),
        ("max_length", 9, "max_length: expected a known key"),
        ("unpad_inputs", True, ""),
    ],
)
def test_key_within_key_is_refused_by_name(
    read: Callable[[str, str, object], None], key: str, value: object, named: str
) -> None:
    if not named:
        read("sentence_bert_config.json", key, value)
        return
    with pytest.raises(InvalidModel, match=re.escape(named)):
        read("sentence_bert_config.json", key, value)


def keys_of(heading: str) -> set[str]:
    return {key for keys, _ in TABLES[heading] for key in keys}


def test_page_has_all_keys_of_generation() -> None:
    from transformers import GenerationConfig

    parameters = set(GenerationConfig().to_dict()) - {"_from_model_config"}
    assert parameters <= keys_of("generation_config.json")


def test_page_has_all_keys_of_sentence_transformers() -> None:
    from sentence_transformers.base.modules import Dense, Module, Normalize, Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore
    from sentence_transformers.sentence_transformer import modules as own
    from sentence_transformers.sentence_transformer.modules import CNN, Pooling
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder, SparseStaticEmbedding, SpladePooling

    arguments = set(inspect.signature(Transformer.__init__).parameters) - {"self", "model_name_or_path", "backend"}
    assert arguments | set(Transformer.config_keys) <= keys_of("sentence_bert_config.json")
    classes: tuple[type[Module], ...] = (
        *(Pooling, LogitScore, Normalize, Dense, own.LayerNorm, own.Dropout, own.WeightedLayerPooling, CNN),
        *(SparseAutoEncoder, SparseStaticEmbedding, SpladePooling),
        *(own.LSTM, own.WordEmbeddings, own.WordWeights, own.BoW),
    )
    modules = {
        *Pooling.config_key_renames,
        *CNN.config_key_renames,
        *(key for each in classes for key in each.config_keys),
    }
    assert modules <= keys_of("config.json of a module")


def test_page_has_all_keys_of_images() -> None:
    from transformers.processing_utils import ImagesKwargs

    assert set(ImagesKwargs.__annotations__) <= keys_of("preprocessor_config.json")


def test_page_has_all_keys_of_tokenizers() -> None:
    """Those of the base class and of the classes with steps of their own."""
    from transformers import (
        AlbertTokenizer,
        BertTokenizer,
        DebertaV2Tokenizer,
        FunnelTokenizer,
        PreTrainedTokenizerBase,
        RemBertTokenizer,
        RobertaTokenizer,
    )

    listed = keys_of("tokenizer_config.json")
    popped = re.findall(r'kwargs\.pop\(\s*"(\w+)"', inspect.getsource(PreTrainedTokenizerBase.__init__))
    read_by_class = {
        name
        for each in (
            BertTokenizer,
            DebertaV2Tokenizer,
            FunnelTokenizer,
            RobertaTokenizer,
            AlbertTokenizer,
            RemBertTokenizer,
        )
        for name in inspect.signature(each.__init__).parameters
    }
    others = {"self", "vocab", "merges", "kwargs", "_spm_precompiled_charsmap", "unk_id", "wordpieces_prefix"}
    assert {*popped} | read_by_class <= listed | others
    assert set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES) <= listed
