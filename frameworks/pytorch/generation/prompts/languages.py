"""The languages of a tokenizer that translates: the special tokens of each, as transformers' tokenizers set them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MARKS = (">>", "<<")
"""Around the code of a target language, at the beginning of a text for Marian."""


@dataclass(frozen=True, slots=True)
class SourceMarks:
    """The tokens before and after a source in one language."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


class Languages:
    """`sources`: the marks of a source by its language; empty where the tokenizer has one form for all. `targets`: the
    first token of a text by its language. `named_targets`: languages that the text of the source names.
    """

    def __init__(self, pretrained: Any) -> None:
        """`pretrained`: transformers' tokenizer; its own languages are set again in the end."""
        self.sources: dict[str, SourceMarks] = {}
        self.targets: Mapping[str, int] = {}
        codes = getattr(pretrained, "supported_language_codes", None) or ()
        self.named_targets = frozenset(code.removeprefix(_MARKS[0]).removesuffix(_MARKS[1]) for code in codes)
        if not hasattr(type(pretrained), "src_lang"):
            return
        self.targets = _codes_of(pretrained)
        own = pretrained.src_lang
        for code in self.targets:
            pretrained.src_lang = code
            self.sources[code] = SourceMarks(tuple(pretrained.prefix_tokens), tuple(pretrained.suffix_tokens))
        pretrained.src_lang = own
        self.own_marks = SourceMarks(tuple(pretrained.prefix_tokens), tuple(pretrained.suffix_tokens))
        """Of a source whose language the request does not name."""

    def named(self, text: str, target: str | None) -> str:
        """Return the text of a source that names its target language, where the tokenizer reads it there."""
        return f"{_MARKS[0]}{target}{_MARKS[1]} {text}" if target in self.named_targets else text

    def marks(self, source: str | None) -> SourceMarks | None:
        """Return the tokens around a source; None where the tokenizer has one form for all."""
        return None if not self.sources else self.own_marks if source is None else self.sources[source]


def _codes_of(pretrained: Any) -> dict[str, int]:
    """Return the token of each language."""
    known = getattr(pretrained, "lang_code_to_id", None)
    if known is None:
        # NLLB: the codes are special tokens of the vocabulary.
        from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

        unknown = pretrained.unk_token_id
        known = {code: pretrained.convert_tokens_to_ids(code) for code in FAIRSEQ_LANGUAGE_CODES}
        known = {code: token_id for code, token_id in known.items() if token_id not in (None, unknown)}
    return dict(known)
