"""The training of names, its sentences and its vocabulary."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.embedded import copy_names
from tests.e2e.server import MODELS
from tools.training import name_sentences, train_names
from tools.training.name_sentences import Sentence, Writer
from tools.training.name_vocabulary import SPECIAL, new_tokenizer

WORDS = name_sentences.read_words()
COMMON = ("again", "under", "paper")
PIECES = (
    *SPECIAL,
    "A",
    "##n",
    "##na",
    "lives",
    "in",
    "R",
    "##om",
    "##e",
    ".",
    "o",
    "r",
    "##k",
    "k",
    "M",
    "##ull",
    "##er",
)


def written(seed: int, start: str = "sentence") -> Writer:
    return Writer(name_sentences.split_words(WORDS, held_out=False), COMMON, Random(seed), start)


def test_sentence_spans_are_names_of_text() -> None:
    writer = written(1)
    made = [writer.sentence() for _ in range(500)]
    kinds = {kind for each in made for _, _, kind in each.spans}
    assert kinds == {"PER", "ORG", "LOC"}
    for sentence in made:
        assert "{" not in sentence.text
        ends = [0]
        for start, end, _ in sentence.spans:
            name = sentence.text[start:end]
            assert start >= ends[-1]
            assert name == name.strip() != ""
            ends.append(end)


def test_sentences_are_deterministic() -> None:
    assert [written(5).sentence() for _ in range(3)] == [written(5).sentence() for _ in range(3)]


@pytest.mark.parametrize("name", ["first_names", "last_names", "places", "organisations"])
def test_held_out_names_are_a_seventh(name: str) -> None:
    kept, held_out = (name_sentences.split_words(WORDS, held_out)[name] for held_out in (False, True))
    assert not {*kept} & {*held_out}
    assert len(WORDS[name]) / 12 < len(held_out) < len(WORDS[name]) / 4


def test_labels_begin_and_continue_names() -> None:
    tokenizer = new_tokenizer(PIECES, 32)
    sentence = Sentence("Anna lives in Rome.", ((0, 4, "PER"), (14, 18, "LOC")))
    read = tokenizer(sentence.text, return_offsets_mapping=True)
    names = [train_names.LABELS[i] if i >= 0 else "" for i in train_names.labels_of(sentence, read["offset_mapping"])]
    assert names == ["", "B-PER", "I-PER", "I-PER", "O", "O", "B-LOC", "I-LOC", "I-LOC", "O", ""]


def test_tokenizer_removes_accents_and_keeps_case() -> None:
    tokenizer = new_tokenizer(PIECES, 32)
    read = tokenizer("Müller", return_offsets_mapping=True)
    assert tokenizer.convert_ids_to_tokens(read["input_ids"]) == ["[CLS]", "M", "##ull", "##er", "[SEP]"]
    assert read["offset_mapping"][1:-1] == [(0, 1), (1, 4), (4, 6)]


@pytest.mark.extended
def test_training_writes_a_hugging_face_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    for name, value in (("STEPS", 2), ("NUM_HELD_OUT", 4), ("MIN_F1", 0.0)):
        monkeypatch.setattr(train_names, name, value)
    train_names.main(["--out", str(tmp_path), "--minilm", str(MODELS / "minilm")])
    assert {path.name for path in tmp_path.iterdir()} == set(copy_names.FILES)
    answer = transformers.pipeline("token-classification", model=str(tmp_path), ignore_labels=[])("Anna lives in Rome.")
    assert {each["entity"] for each in answer} <= set(train_names.LABELS)


def test_poor_training_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def made(*_: Any, **__: Any) -> Iterator[Sentence]:
        return islice(iter(lambda: Sentence("a", ()), None), 10_000)

    monkeypatch.setattr(train_names, "read_source", lambda _: None)
    monkeypatch.setattr(train_names, "new_model", lambda _: (torch.nn.Identity(), None))
    monkeypatch.setattr(train_names, "train", lambda *_: None)
    monkeypatch.setattr(train_names, "sentences", made)
    monkeypatch.setattr(train_names, "f1_of", lambda *_: 0.5)
    with pytest.raises(SystemExit, match=r"expected an F1 of .* got 0.5000; nothing written"):
        train_names.main(["--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
