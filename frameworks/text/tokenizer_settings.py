"""Read what `tokenizer_config.json` changes of the tokenizer in `tokenizer.json`, and apply it.

transformers builds most tokenizers again from the vocabulary: the arguments of the class replace the steps in
`tokenizer.json`. Its class for any tokenizer reads the file alone. Source: the tokenizer classes of transformers 5.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.text.tokenizer_class import BERT_NORMALIZED, BYTE_LEVEL, tokenizer_class_of

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# Of classes that build their steps by these keys, the steps of tokenizer.json that a key puts there.
_STEPS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "AlbertTokenizer": {"do_lower_case": ("Lowercase", True), "keep_accents": ("StripAccents", False)},
    "RemBertTokenizer": {"do_lower_case": ("Lowercase", True), "keep_accents": ("StripAccents", False)},
    "XLNetTokenizer": {"do_lower_case": ("Lowercase", True)},
    "DebertaV2Tokenizer": {"do_lower_case": ("Lowercase", True), "split_by_punct": ("Punctuation", True)},
}
_SPACED = frozenset(
    f"{name}Tokenizer" for name in ("Albert", "BigBird", "Barthez", "Camembert", "RemBert", "XGLM", "XLMRoberta")
)
_MOST_TOKENS = 100_000

_Keys = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The changes of a tokenizer. `lower_case`, `strip_accents`, `split_chinese`, `clean_text`: of BERT's normalizer,
    where `has_bert_normalizer`; `strip_accents` None: as `lower_case`. `prefix_space`: whether bytes begin with a
    space; None: as in the file. `splits_special`: special tokens in a text are read as other text. `tokens`: special
    tokens that a text may have.
    """

    has_bert_normalizer: bool = False
    lower_case: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True
    clean_text: bool = True
    prefix_space: bool | None = None
    splits_special: bool = False
    tokens: "tuple[AddedToken, ...]" = ()

    def apply(self, tokenizer: "Tokenizer") -> None:
        """Change a tokenizer as it was read from tokenizer.json."""
        from tokenizers import normalizers, pre_tokenizers

        if self.has_bert_normalizer:
            tokenizer.normalizer = normalizers.BertNormalizer(
                clean_text=self.clean_text,
                handle_chinese_chars=self.split_chinese,
                strip_accents=self.strip_accents,
                lowercase=self.lower_case,
            )
        if self.prefix_space is not None and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
            tokenizer.pre_tokenizer.add_prefix_space = self.prefix_space
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        # A token that is not in the vocabulary has no row among the embeddings.
        added = [t for t in self.tokens if t.content not in known and tokenizer.token_to_id(t.content) is not None]
        tokenizer.add_special_tokens([token for token in added if token.special])
        tokenizer.add_tokens([token for token in added if not token.special])
        tokenizer.encode_special_tokens = self.splits_special


def read_tokenizer_settings(config: _Keys, tokenizer: _Keys, folder: Path) -> TokenizerSettings:
    """Read the keys of `tokenizer_config.json`, and the tokens of `special_tokens_map.json` and `added_tokens.json`.

    `config`, `tokenizer`: the contents of `config.json` and `tokenizer_config.json`. Raises InvalidModel for values of
    other types, and for keys that contradict tokenizer.json and cannot replace its steps.
    """
    file = folder / "tokenizer_config.json"
    name = tokenizer_class_of(config, tokenizer)
    flags = _Flags(file, tokenizer)
    _check_steps(name, flags, folder)
    return TokenizerSettings(
        has_bert_normalizer=name in BERT_NORMALIZED,
        lower_case=flags.read("do_lower_case", True),
        strip_accents=flags.read("strip_accents", None),
        split_chinese=flags.read("tokenize_chinese_chars", True),
        clean_text=flags.read("clean_text", True) if name == "FunnelTokenizer" else True,
        prefix_space=flags.read("add_prefix_space", False) if name in BYTE_LEVEL else None,
        splits_special=flags.read("split_special_tokens", False),
        tokens=tuple(_tokens(tokenizer, folder)),
    )


@dataclass(frozen=True, slots=True)
class _Flags:
    """The keys of a file that are true or false."""

    file: Path
    keys: _Keys

    def read(self, key: str, default: Any) -> Any:
        """Return the value of a key, the default where it is absent or null. Raises InvalidModel."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidModel(f"{self.file}: {key}: expected true or false, got {str(value)[:100]}; correct it")
        return value


def _check_steps(name: str, flags: _Flags, folder: Path) -> None:
    """Raise InvalidModel where a stated key contradicts the steps of tokenizer.json."""
    stated = {key: step for key, step in _STEPS.get(name, {}).items() if flags.read(key, None) is not None}
    prefix_space = flags.read("add_prefix_space", None) if name in _SPACED else None
    if not stated and prefix_space is None:
        return
    content = read_json(folder / "tokenizer.json")
    steps = {str(step.get("type")): step for step in _steps([content.get("normalizer"), content.get("pre_tokenizer")])}
    for key, (step, puts) in stated.items():
        if steps and (step in steps) is not (flags.read(key, None) is puts):
            raise _contradiction(flags, key, "with" if step in steps else "without", step)
    metaspace = steps.get("Metaspace", {})
    scheme = metaspace.get("prepend_scheme", "never" if metaspace.get("add_prefix_space") is False else "always")
    if metaspace and prefix_space is not None and (scheme == "always") is not prefix_space:
        raise _contradiction(flags, "add_prefix_space", "with", f'prepend_scheme "{scheme}"')


def _contradiction(flags: _Flags, key: str, has: str, step: str) -> InvalidModel:
    found = json.dumps(flags.keys[key])
    return InvalidModel(
        f"{flags.file}: {key}: expected the steps of tokenizer.json, {has} {step}, got {found}; "
        "save both files together with transformers"
    )


def _steps(parts: Sequence[object]) -> Iterator[_Keys]:
    """Yield the steps of normalizers and pre-tokenizers, also those in sequences."""
    for part in parts:
        if isinstance(part, dict):
            yield part
            for key in ("normalizers", "pretokenizers"):
                inner = part.get(key)
                yield from _steps(inner if isinstance(inner, list) else [])


def _tokens(tokenizer: _Keys, folder: Path) -> "Iterator[AddedToken]":
    """Yield the tokens that the files name. The older files are read where transformers reads them."""
    has_decoder = isinstance(tokenizer.get("added_tokens_decoder"), dict)
    older: _Keys = {} if has_decoder else read_json(folder / "special_tokens_map.json")
    for keys in (tokenizer, older):
        for key, value in keys.items():
            if key.endswith("_token") and not key.startswith("add_"):
                yield from _as_tokens([value])
            elif key in ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"):
                yield from _as_tokens(list(value.values()) if isinstance(value, dict) else value)
    if has_decoder:
        yield from _as_tokens(list(tokenizer["added_tokens_decoder"].values()))
        return
    names = read_json(folder / "added_tokens.json")
    yield from _as_tokens([{"content": name, "normalized": True, "special": False} for name in names])


def _as_tokens(values: object) -> "Iterator[AddedToken]":
    from tokenizers import AddedToken

    for value in values[:_MOST_TOKENS] if isinstance(values, list) else []:
        flags = value if isinstance(value, dict) else {"content": value}
        content = flags.get("content")
        if isinstance(content, str) and content:
            yield AddedToken(
                content,
                single_word=flags.get("single_word") is True,
                lstrip=flags.get("lstrip") is True,
                rstrip=flags.get("rstrip") is True,
                normalized=flags.get("normalized") is True,
                special=flags.get("special") is not False,
            )
