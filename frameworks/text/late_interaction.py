"""Read how a model of late interaction (ColBERT) reads queries and documents, from its folder.

Sources: PyLate's `config_sentence_transformers.json` with model_type ColBERT, and Stanford's `artifact.metadata` beside
an HF_ColBERT, both as sentence-transformers 6 reads them.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.text.sentence_modules.modules import Module

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PYLATE = "ColBERT"
STANFORD = "HF_ColBERT"
PROJECTIONS = ("Dense", "pylate.models.Dense.Dense")
"""Modules that project the state of each token."""
_QUERY_LENGTH = 32
_MOST_TOKENS = 1_000_000
_MOST_WORDS = 10_000
_MARKERS = (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]"))


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """`query_prompt`, `document_prompt`: marker and prompt before each text. `markers`: those that are one token.

    `query_length`: maximum tokens of a query; None: the model's limit. `expands`: shorter queries are filled with mask
    tokens up to it. `attends`: tokens attend to these. `skipped`: tokens of documents that get no vector.
    `document_length`: None for the model's limit. `projections`: folders of the modules after the encoder; None: the
    projection is a weight of the encoder's own file.
    """

    query_prompt: str
    document_prompt: str
    markers: tuple[str, ...]
    query_length: int | None
    document_length: int | None
    expands: bool
    attends: bool
    skipped: tuple[str, ...]
    projections: tuple[Path, ...] | None


def read_late_interaction(folder: Path, modules: Sequence[Module], config: Mapping[str, Any]) -> LateInteraction | None:
    """Return the settings of a model of late interaction; None for another. `config`: of the encoder.

    Raises InvalidModel.
    """
    if config.get("architectures") == [STANFORD] and not modules:
        return _of_stanford(folder / "artifact.metadata")
    file = folder / "config_sentence_transformers.json"
    stated = read_json(file)
    if not modules or stated.get("model_type") != PYLATE:
        return None
    unserved = [module.kind for module in modules[1:] if module.kind not in (*PROJECTIONS, "Normalize")]
    if modules[0].kind != "Transformer" or unserved:
        raise InvalidModel(
            f"{folder / 'modules.json'}: expected Transformer, Dense and Normalize in a model of late interaction, "
            f"got {(unserved or [modules[0].kind])[0]}"
        )
    prompts = stated.get("prompts")
    own = prompts if isinstance(prompts, dict) else {}
    markers = [_text(stated, f"{side}_prefix", file) for side in ("query", "document")]
    query, document = (
        marker + str(own.get(side) or "").removeprefix(marker)
        for side, marker in zip(("query", "document"), markers, strict=True)
    )
    expands = stated.get("do_query_expansion") is not False
    length = _length(stated, "query_length", file)
    return LateInteraction(
        query_prompt=query,
        document_prompt=document,
        markers=tuple(marker for marker in markers if marker.strip()),
        query_length=length or (_QUERY_LENGTH if expands else None),
        document_length=_length(stated, "document_length", file),
        expands=expands,
        attends=bool(stated.get("attend_to_expansion_tokens")),
        skipped=_words(stated, file),
        projections=tuple(module.folder for module in modules if module.kind in PROJECTIONS),
    )


def register_markers(tokenizer: "Tokenizer", late: LateInteraction) -> None:
    """Let the tokenizer read each marker of its vocabulary as one token.

    A marker that is no token is read as text.
    """
    from tokenizers import AddedToken

    for marker in late.markers:
        for spelling in (marker, marker.split(None, 1)[0]):
            if tokenizer.token_to_id(spelling) is not None:
                if tokenizer.encode(spelling, add_special_tokens=False).tokens != [spelling]:
                    tokenizer.add_special_tokens([AddedToken(spelling, normalized=False, special=True)])
                break


def _of_stanford(file: Path) -> LateInteraction:
    stated = read_json(file)
    query, document = (f"{_text(stated, key, file) or default} " for key, default in _MARKERS)
    return LateInteraction(
        query_prompt=query,
        document_prompt=document,
        markers=(query, document),
        query_length=_length(stated, "query_maxlen", file) or _QUERY_LENGTH,
        document_length=_length(stated, "doc_maxlen", file),
        expands=True,
        attends=bool(stated.get("attend_to_mask_tokens")),
        skipped=tuple(string.punctuation) if stated.get("mask_punctuation", True) else (),
        projections=None,
    )


def _text(stated: Mapping[str, Any], key: str, file: Path) -> str:
    value = stated.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidModel(f"{file}: {key}: expected a string, got {str(value)[:100]}; correct it")
    return value or ""


def _length(stated: Mapping[str, Any], key: str, file: Path) -> int | None:
    value = stated.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST_TOKENS:
        raise InvalidModel(f"{file}: {key}: expected a number of tokens, got {str(value)[:100]}; correct it")
    return value


def _words(stated: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    words = stated.get("skiplist_words")
    if words is None:
        return tuple(string.punctuation)
    if not isinstance(words, list) or len(words) > _MOST_WORDS or not all(isinstance(word, str) for word in words):
        raise InvalidModel(f"{file}: skiplist_words: expected a list of at most {_MOST_WORDS} words; correct it")
    return tuple(words)
