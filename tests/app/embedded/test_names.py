"""The committed folder of names, run by transformers' pipeline on sentences that no training has seen, and its copy."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from app.embedded import copy_names
from app.embedded.copy_minilm import NAME as MINILM
from tests.e2e.server import MODELS
from tools.training import train_names
from tools.training.name_sentences import Sentence
from tools.training.name_vocabulary import read_source

NATURAL = (
    "[PER Angela Merkel] met [PER Tim Cook] in [LOC Berlin].",
    "My name is [PER Wolfgang] and I live in [LOC Berlin].",
    "[PER Satya Nadella] has led [ORG Microsoft] since 2014.",
    "The flight from [LOC Zurich] to [LOC New York] was delayed by three hours.",
    "[PER Marie Curie] was born in [LOC Warsaw] and became a professor in [LOC Paris].",
    "[ORG Siemens] plans to build a factory near [LOC Leipzig], the mayor told [ORG Reuters].",
    "Last summer we hiked through [LOC Norway] with our two dogs.",
    "[PER Barack Obama] visited [LOC Kenya], where his father was born.",
    "[ORG Toyota] recalled two million cars after [PER Sandra Ruiz] complained.",
    "Nobody expected that the old bridge would be closed on Monday.",
    "The [ORG European Commission] fined [ORG Google] 2.4 billion euros.",
    "[PER Dr. Watson] shook his head. It was raining in [LOC London].",
    "Ask [PER Priya] whether [ORG IBM] has paid the invoice.",
    "[LOC Rome] is older than [LOC Madrid], but younger than [LOC Athens].",
    "[PER Lionel Messi] left [ORG Barcelona] for [LOC Paris] in tears.",
    "Please read the manual before you switch on the machine.",
    "[PER Jean-Luc Picard] ordered tea, Earl Grey, hot.",
    "The [ORG University of Oxford] gave [PER Ada Okafor] a prize.",
    "[PER Elon Musk] bought [ORG Twitter] and moved its offices to [LOC Texas].",
    "She took the train to [LOC Cologne] to see [PER Mr. Bianchi] of [ORG Bayer].",
    "German engineers like French cheese and Italian wine.",
    "[ORG Apple] opened its first shop in [LOC Mumbai] in April.",
    "In [LOC Canada], [PER Justin Trudeau] resigned.",
    "[PER Ludwig van Beethoven] lived in [LOC Vienna] for most of his life.",
)
"""Sentences written by hand: names between brackets."""


def marked(text: str) -> Sentence:
    """Read a sentence of NATURAL. Titles are no part of a name."""
    spans, plain = [], ""
    for piece in text.replace("]", "[").split("["):
        kind, _, name = piece.partition(" ")
        if kind in ("PER", "ORG", "LOC"):
            for title in ("Dr. ", "Mr. "):
                if name.startswith(title):
                    plain, name = plain + title, name.removeprefix(title)
            spans.append((len(plain), len(plain) + len(name), kind))
            plain += name
        else:
            plain += piece
    return Sentence(plain, tuple(spans))


@pytest.fixture(scope="module")
def pipeline() -> Any:
    import transformers

    return transformers.pipeline("token-classification", model=str(copy_names.COMMITTED), dtype="float32")


def test_committed_model_finds_names_written_by_hand(pipeline: Any) -> None:
    assert train_names.f1_of(pipeline.model, pipeline.tokenizer, [marked(text) for text in NATURAL]) >= 0.75


def test_committed_model_finds_held_out_names(pipeline: Any) -> None:
    made = train_names.sentences(read_source(MODELS / MINILM), held_out=True, seed=77)
    assert train_names.f1_of(pipeline.model, pipeline.tokenizer, [*islice(made, 120)]) >= train_names.MIN_F1 - 0.05


def test_readme_sentence_is_understood(pipeline: Any) -> None:
    answer = pipeline(marked(NATURAL[0]).text, aggregation_strategy="first")
    found = [(each["entity_group"], each["word"], each["start"], each["end"]) for each in answer]
    assert found == [("PER", "Angela Merkel", 0, 13), ("PER", "Tim Cook", 18, 26), ("LOC", "Berlin", 30, 36)]


def test_prepare_copies_files_once(tmp_path: Path) -> None:
    assert copy_names.prepare(tmp_path)
    assert not copy_names.prepare(tmp_path)
    for name in copy_names.FILES:
        assert (tmp_path / "names" / name).read_bytes() == (copy_names.COMMITTED / name).read_bytes()
