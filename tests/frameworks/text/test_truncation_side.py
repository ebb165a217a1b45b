"""Test the cut of long texts on the left against the tokenizers library."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.text.config import read_text_config
from frameworks.text.tokenizer import TextTokenizer
from tests.support.models.text_files import TEXTS, change_json, write_json, write_tokenizer

LONG = "the cat sat on the turntable . the engine runs on steam : "
LONGER = LONG * 3000
LIMITS = (4, 5, 6, 9, 10, 15)
ENDS = [(LONG, LONG), (LONG, "steam"), ("steam", LONG), ("", LONG), (LONG, ""), (LONG * 2, LONG), ("the", "cat")]

Make = Callable[[int], TextTokenizer]


@pytest.fixture(params=["bert", "roberta", "none"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "none":
        write_tokenizer(tmp_path, special_tokens=False)
    else:
        write_tokenizer(tmp_path, request.param)
    change_json(tmp_path / "tokenizer_config.json", truncation_side="left")
    return tmp_path


@pytest.fixture
def tokenizer(folder: Path) -> Make:
    return lambda limit: TextTokenizer(folder, replace(read_text_config(folder), max_tokens=limit))


def library(folder: Path, limit: int) -> Tokenizer:
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found.enable_truncation(limit, direction="left")
    return found


def test_left_cut_of_texts_equals_library(tokenizer: Make, folder: Path) -> None:
    for limit in LIMITS:
        texts = [*TEXTS, LONG, *([LONGER] if limit in (LIMITS[0], LIMITS[-1]) else [])]
        wanted = [encoding.ids for encoding in library(folder, limit).encode_batch(texts)]
        assert tokenizer(limit).tokenize(texts, truncate=True) == wanted


def test_left_cut_of_pairs_equals_library(tokenizer: Make, folder: Path) -> None:
    # The library cuts long pairs token by token.
    long = LONG * 200
    for limit in LIMITS[1:]:
        pairs = [*ENDS, *([(long, LONG), (LONG, long)] if limit in (LIMITS[1], LIMITS[-1]) else [])]
        wanted = library(folder, limit).encode_batch(pairs)
        read = tokenizer(limit).tokenize_pairs(pairs, truncate=True)
        assert read.token_ids == [encoding.ids for encoding in wanted]


def test_side_of_request_overrides_files(folder: Path, tokenizer: Make) -> None:
    left = {limit: tokenizer(limit) for limit in LIMITS[1:]}
    change_json(folder / "tokenizer_config.json", truncation_side="right")
    for limit, one in left.items():
        other = tokenizer(limit)
        texts = [LONG, "the cat"]
        ids = [one.ids_of(text, add_special_tokens=True) for text in texts]
        for kept, cut in ((one, "left"), (other, "right")):
            side: Any = cut
            for asked in (one, other):
                assert asked.tokenize(texts, side) == kept.tokenize(texts, truncate=True)
                assert asked.read_ids(ids, side) == kept.read_ids(ids, truncate=True)
                assert asked.tokenize_pairs(ENDS, side) == kept.tokenize_pairs(ENDS, truncate=True)
        assert limit > 10 or one.tokenize(texts, "left") != one.tokenize(texts, "right")


def test_left_cut_of_ids_equals_cut_of_text(tokenizer: Make) -> None:
    for limit in LIMITS:
        one = tokenizer(limit)
        ids = [one.ids_of(text, add_special_tokens=True) for text in (LONG, "the cat")]
        assert one.read_ids(ids, truncate=True) == one.tokenize([LONG, "the cat"], truncate=True)


def test_long_text_without_truncation_is_refused(tokenizer: Make) -> None:
    for text in (LONG, LONGER):
        with pytest.raises(InvalidInput, match=r"^text\[0\]: expected at most 6 tokens"):
            tokenizer(6).tokenize([text], truncate=False)


def test_side_of_config_overrides_tokenizer_file(tmp_path: Path) -> None:
    """As in transformers, where the direction of tokenizer.json is the default."""
    write_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    assert not read_text_config(tmp_path).truncates_left
    change_json(tmp_path / "tokenizer.json", truncation={"direction": "Left", "max_length": 9})
    assert read_text_config(tmp_path).truncates_left
    change_json(tmp_path / "tokenizer_config.json", truncation_side="right")
    assert not read_text_config(tmp_path).truncates_left


@pytest.mark.parametrize("side", ["middle", 1, [], True])
def test_unknown_side_is_refused_by_name(tmp_path: Path, side: object) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"truncation_side": side})
    with pytest.raises(InvalidModel, match=r'truncation_side: expected "left" or "right", got '):
        read_text_config(tmp_path)
