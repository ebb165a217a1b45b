"""Test what tokenizer_config.json changes of a tokenizer: token ids equal those of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from frameworks.core.errors import InvalidModel
from frameworks.text.config import read_text_config
from frameworks.text.tokenizer import TextTokenizer
from tests.support.models.text_files import TEXTS, change_json, write_json, write_tokenizer

READ = (*TEXTS, "The CAT [MASK] sat, [unused] On", "café 日本 CAFÉ", " the  cat ", "the [SEP] cat")

Make = Callable[..., Path]


@pytest.fixture
def folder_of(tmp_path: Path) -> Make:
    """Write a tokenizer of this class, with these keys in tokenizer_config.json."""

    def make(tokenizer_class: str | None, family: str = "bert", lower_case: bool = True, **keys: object) -> Path:
        write_tokenizer(tmp_path, lower_case=lower_case)
        write_json(tmp_path / "config.json", {"model_type": family, "vocab_size": 128})
        change_json(tmp_path / "tokenizer_config.json", tokenizer_class=tokenizer_class, **keys)
        return tmp_path

    return make


def ours(folder: Path) -> list[list[int]]:
    return TextTokenizer(folder, read_text_config(folder)).tokenize([*READ], truncate=True)


def theirs(folder: Path) -> list[list[int]]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    ids: list[list[int]] = tokenizer([*READ])["input_ids"]
    return ids


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("keys", [{}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}])
@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_lower_case_follows_class_and_keys(folder_of: Make, name: str, keys: dict[str, bool], lower_case: bool) -> None:
    folder = folder_of(name, lower_case=lower_case, **keys)
    assert ours(folder) == theirs(folder)


@pytest.mark.extended
@pytest.mark.parametrize("keys", [{"tokenize_chinese_chars": False}, {"strip_accents": True, "do_lower_case": False}])
@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ElectraTokenizerFast", "electra"), ("DistilBertTokenizer", "distilbert"), ("MPNetTokenizer", "mpnet"),
        ("MobileBertTokenizer", "mobilebert"), ("SplinterTokenizer", "splinter"), ("BertTokenizer", "nystromformer"),
        (None, "bert"), (None, "mpnet"), (None, "nystromformer"),
    ],
)  # fmt: skip
def test_keys_of_bert_classes_equal_transformers(
    folder_of: Make, name: str | None, family: str, keys: dict[str, bool]
) -> None:
    for lower_case in (True, False):
        special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        folder = folder_of(name, family, lower_case, **keys, **special)
        assert ours(folder) == theirs(folder)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_special_tokens_can_be_read_as_text(folder_of: Make, name: str) -> None:
    folder = folder_of(name, split_special_tokens=True)
    assert ours(folder) == theirs(folder)


@pytest.mark.parametrize(
    "keys",
    [
        {"additional_special_tokens": ["turntable"]},
        {"extra_special_tokens": ["engine", "steam"]},
        {"bos_token": "cat"},
        {"added_tokens_decoder": {"8": {"content": "on", "special": False, "lstrip": True, "normalized": True}}},
    ],
)
def test_named_tokens_are_special(folder_of: Make, keys: dict[str, Any]) -> None:
    """Words of the vocabulary that only tokenizer_config.json makes special: of other cases they are other words."""
    folder = folder_of("PreTrainedTokenizerFast", **keys)
    plain = TextTokenizer(folder, read_text_config(folder)).tokenize(["theTURNTABLEcat", "theengineon cat"], True)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert plain == tokenizer(["theTURNTABLEcat", "theengineon cat"])["input_ids"]
    assert ours(folder) == theirs(folder)


def test_tokens_of_special_tokens_map_are_special(folder_of: Make) -> None:
    folder = folder_of("PreTrainedTokenizerFast")
    before = ours(folder)
    tokens = {"additional_special_tokens": ["cat"], "eos_token": {"content": "a", "lstrip": True, "normalized": False}}
    write_json(folder / "special_tokens_map.json", tokens)
    assert ours(folder) == theirs(folder)
    assert ours(folder) != before


def test_tokens_of_added_tokens_file_are_read(folder_of: Make) -> None:
    folder = folder_of("PreTrainedTokenizerFast")
    write_json(folder / "added_tokens.json", {"turntable": 11})
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    texts = ["theturntablecat", "the Turntable"]
    read = TextTokenizer(folder, read_text_config(folder)).tokenize(texts, truncate=True)
    assert read == tokenizer(texts)["input_ids"]
    assert 11 in read[0]


def byte_level(folder: Path, name: str | None, family: str, in_file: bool, **keys: object) -> Path:
    pieces = {
        letter: i for i, letter in enumerate(["<s>", "<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Tokenizer(models.BPE(pieces, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=in_file)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": family, "vocab_size": 400})
    change_json(folder / "tokenizer_config.json", tokenizer_class=name, **keys)
    return folder


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("keys", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}])
@pytest.mark.parametrize("name", ["RobertaTokenizer", "PreTrainedTokenizerFast", "GPT2Tokenizer", None])
def test_prefix_space_follows_class_and_key(
    tmp_path: Path, name: str | None, keys: dict[str, bool], in_file: bool
) -> None:
    folder = byte_level(tmp_path, name, "roberta", in_file, **keys)
    text = "the cat"
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert TextTokenizer(folder, read_text_config(folder)).ids_of(text, add_special_tokens=False) == wanted


STEPS: dict[str, dict[str, Any]] = {
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "prepend_scheme": "always"}]},
}


@pytest.mark.parametrize(
    ("name", "key", "served", "refused"),
    [
        ("AlbertTokenizer", "do_lower_case", True, False),
        ("AlbertTokenizerFast", "keep_accents", True, False),
        ("XLNetTokenizer", "do_lower_case", True, False),
        ("DebertaV2Tokenizer", "split_by_punct", False, True),
        ("XLMRobertaTokenizer", "add_prefix_space", True, False),
        ("PreTrainedTokenizerFast", "do_lower_case", False, None),
        ("BertTokenizer", "do_lower_case", False, "yes"),
        ("BertTokenizer", "split_special_tokens", True, 1),
        ("RobertaTokenizer", "add_prefix_space", True, "no"),
    ],
)
def test_key_that_contradicts_steps_is_refused(
    tmp_path: Path, name: str, key: str, served: bool, refused: object
) -> None:
    write_json(tmp_path / "tokenizer.json", STEPS)
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": name, key: served})
    read_text_config(tmp_path)
    if refused is not None:
        write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": name, key: refused})
        with pytest.raises(
            InvalidModel, match=rf"tokenizer_config\.json: {key}: expected .*, got {json.dumps(refused)}|{key}"
        ):
            read_text_config(tmp_path)


@pytest.mark.extended
def test_saved_tokenizers_contradict_nothing(tmp_path: Path) -> None:
    """Folders that transformers saved are served, with its token ids."""
    names = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
    pieces = [
        *((name, 0.0) for name in names),
        ("▁", -1.0),
        *((letter, -2.0) for letter in "abcdefghijklmnopqrstuvwxyz.,[]"),
    ]
    for name in ("AlbertTokenizer", "XLMRobertaTokenizer", "DebertaV2Tokenizer", "CamembertTokenizer"):
        made: Any = getattr(transformers, name)(vocab=pieces)
        folder = tmp_path / name
        made.save_pretrained(folder)
        write_json(folder / "config.json", {"model_type": "albert", "vocab_size": 128})
        read = TextTokenizer(folder, read_text_config(folder)).tokenize([*READ], truncate=True)
        assert read == theirs(folder), name


def test_normalizer_of_other_class_stays(folder_of: Make) -> None:
    folder = folder_of("PreTrainedTokenizerFast", do_lower_case=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(folder / "tokenizer.json"))
    assert ours(folder) == theirs(folder)
