"""Read the vocabulary of WordEmbeddings, BoW and WordWeights of sentence-transformers, and the weights of its words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_unknown
from frameworks.text.sentence_modules.modules import Module, check_file_bytes
from frameworks.types import Array

_MOST_WORDS = 10_000_000
_LARGEST_NUMBER = 1e38
_PREFIX = "sentence_transformers."
_TOKENIZER_KEYS = ("do_lower_case", "stop_words", "vocab")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`words`: in the order of their ids. `stop_words`: those that have no token. `lower_case`: texts are."""

    words: tuple[str, ...]
    stop_words: frozenset[str] = field(default_factory=frozenset)
    lower_case: bool = False


def read_vocabulary(module: Module) -> Vocabulary | None:
    """Return the words of a first module; None where a tokenizer.json has them. Raises InvalidModel."""
    if module.kind == "BoW":
        return Vocabulary(tuple(dict.fromkeys(_words(module.config_file, module.config, "vocab"))))
    stated = module.config.get("tokenizer_class")
    name = stated.rsplit(".", 1)[-1] if isinstance(stated, str) and stated.startswith(_PREFIX) else ""
    if name == "TransformersTokenizerWrapper":
        return None
    if name != "WhitespaceTokenizer":
        raise InvalidModel(
            f"{module.config_file}: tokenizer_class: expected WhitespaceTokenizer or TransformersTokenizerWrapper of "
            f"sentence-transformers, got {str(stated)[:100]}; this tokenizer is not served"
        )
    file = module.folder / "whitespacetokenizer_config.json"
    check_file_bytes(file)
    config = read_json(file)
    refuse_unknown(file, config, _TOKENIZER_KEYS)
    lower_case = config.get("do_lower_case", False)
    if not isinstance(lower_case, bool):
        raise InvalidModel(f"{file}: do_lower_case: expected true or false, got {str(lower_case)[:100]}; correct it")
    # The file always has them: sentence-transformers writes its own list where no other is given.
    stop_words = _words(file, config, "stop_words")
    return Vocabulary(tuple(_words(file, config, "vocab")), frozenset(stop_words), lower_case)


def word_weights(module: Module) -> Array:
    """Return the weight of each word of BoW or WordWeights, float32 [words]. Raises InvalidModel."""
    file, config = module.config_file, module.config
    words = _words(file, config, "vocab")
    if module.kind == "BoW":
        words = [*dict.fromkeys(words)]
    named = config.get("word_weights", {} if module.kind == "BoW" else None)
    if not isinstance(named, dict):
        raise InvalidModel(f"{file}: word_weights: expected an object of numbers, got {str(named)[:100]}; correct it")
    other = _number(file, "unknown_word_weight", config.get("unknown_word_weight", 1))
    weights = (_weight_of(file, word, named, other) for word in words)
    return np.fromiter(weights, np.float32, len(words))


def _weight_of(file: Path, word: str, named: Mapping[str, Any], other: float) -> float:
    return _number(file, "word_weights", named.get(word, named.get(word.lower(), other)))


def _number(file: Path, key: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST_NUMBER:
        raise InvalidModel(f"{file}: {key}: expected a number, got {str(value)[:100]}; correct it")
    return float(value)


def _words(file: Path, config: Mapping[str, Any], key: str) -> list[str]:
    words = config.get(key)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidModel(f"{file}: {key}: expected a list of words, got {str(words)[:100]}; correct it")
    if len(words) > _MOST_WORDS or (key == "vocab" and not words):
        raise InvalidModel(f"{file}: {key}: expected 1 to {_MOST_WORDS} words, got {len(words)}; correct it")
    return words
