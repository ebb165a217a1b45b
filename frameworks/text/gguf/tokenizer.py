"""Make a tokenizer of the vocabulary in a GGUF file, as tokenizers' own `tokenizer.json` describes it.

Text is split as by llama.cpp (llama-vocab.cpp): byte-level BPE with the expressions of its pre-tokenizers, or
SentencePiece's BPE, whose merges follow from the scores of the tokens.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.header import GgufFile
from frameworks.text.gguf.special_tokens import (
    CONTROL,
    TOKENS,
    USER_DEFINED,
    special_ids,
    special_names,
    token_types,
)

_MODEL, _PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_MERGES, _SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.scores"
_UNKNOWN = 2
_TEMPLATE = "tokenizer.chat_template"
_SPACE = "▁"

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS}"
_GPT4O = rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_MARKS}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _LINES,
)
_DIGITS_ALONE = (r"\p{N}", _GPT2)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_SPLITS: Mapping[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "midm-2.0", "pixtral", "lfm2"), (_LLAMA3,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"), (_QWEN2,)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum", "a.x-4.0"), (_GPT2,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS_ALONE),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
}
# Words that are tokens are not made by merges.
_IGNORES_MERGES = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "midm-2.0", "pixtral", "lfm2", "tekken"})
_BEGINS_TEXTS = _IGNORES_MERGES


def read_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the tokenizer.

    Raises InvalidModel for a kind of vocabulary or pre-tokenizer that is not served, and for an inconsistent one.
    """
    tokens, kind = file.strings(TOKENS), file.text(_MODEL)
    if not tokens:
        raise file.wrong(TOKENS, "a list of tokens", None)
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(file, tokens)
        elif kind == "llama":
            tokenizer = _sentencepiece(file, tokens)
        else:
            raise file.wrong(_MODEL, "gpt2 or llama", kind)
        _add_tokens(tokenizer, tokens, token_types(file))
    except InvalidModel:
        raise
    except Exception as error:  # the library raises bare Exception
        raise InvalidModel(f"{file.path}: tokenizer.ggml: expected a vocabulary, got one with {error}") from error
    _frame_texts(tokenizer, file, tokens)
    return tokenizer


def read_tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`: special tokens and chat templates. Raises InvalidModel."""
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= special_names(file)
    default = file.text(_TEMPLATE)
    # Of several templates each has a key of its own, like `tokenizer.chat_template.tool_use`.
    named = {
        key.removeprefix(f"{_TEMPLATE}."): file.text(key) for key in file.metadata if key.startswith(f"{_TEMPLATE}.")
    }
    if default is not None and named:
        config["chat_template"] = [
            {"name": name, "template": template} for name, template in {"default": default, **named}.items()
        ]
    elif default is not None:
        config["chat_template"] = default
    return config


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.text(_PRE, "default")
    splits = _SPLITS.get(str(pre))
    if splits is None:
        raise file.wrong(_PRE, f"one of {', '.join(sorted(_SPLITS))}", pre)
    pairs = [merge.partition(" ") for merge in file.strings(_MERGES)]
    merges = [(first, second) for first, _, second in pairs if first and second]
    if len(merges) != len(pairs):
        raise file.wrong(_MERGES, "pairs of tokens", "others")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=pre in _IGNORES_MERGES
        )
    )
    steps = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.numbers(_SCORES) or []
    if len(scores) != len(tokens):
        raise file.wrong(_SCORES, f"a score for each of {len(tokens)} tokens", f"{len(scores)}")
    unknown = special_names(file).get("unk_token") or next(
        (token for token, kind in zip(tokens, token_types(file), strict=True) if kind == _UNKNOWN), None
    )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if has_prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that make a token, the highest score of the result first, as SentencePiece merges."""
    found = []
    for token, token_id in vocabulary.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(-scores[token_id], pair) for pair in pairs]
    found.sort(key=lambda each: each[0])
    return [pair for _, pair in found]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Add the tokens that text is never split within."""
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)]
    special = [AddedToken(token, normalized=False, special=True) for token, kind in added if kind == CONTROL]
    plain = [AddedToken(token, normalized=False, special=False) for token, kind in added if kind == USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _frame_texts(tokenizer: Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    """Let a text begin and end with the tokens that the file names for it."""
    is_sentencepiece = file.text(_MODEL) == "llama"
    begins = file.flag("tokenizer.ggml.add_bos_token", is_sentencepiece or file.text(_PRE) in _BEGINS_TEXTS)
    ends = file.flag("tokenizer.ggml.add_eos_token", False)
    ids = special_ids(file)
    first, last = ids["bos_token_id"] if begins else None, ids["eos_token_id"] if ends else None
    if first is None and last is None:
        return
    framing = {tokens[each]: each for each in (first, last) if each is not None}
    single = [*([tokens[first]] if first is not None else []), "$A", *([tokens[last]] if last is not None else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, "$B"], special_tokens=list(framing.items())
    )
