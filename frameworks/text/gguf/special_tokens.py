"""The special tokens that a GGUF file names."""

from frameworks.text.gguf.header import GgufFile

TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"  # noqa: S105 - the name of a key
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are never split: control tokens are special, user-defined ones part of the text."""

_NORMAL = 1
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_MORE_ENDS = ("eot", "eom")
# Control tokens of these names end a turn even where no key names them; llama.cpp has the same list.
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek spells it so
    }
)


def special_ids(file: GgufFile) -> dict[str, int | None]:
    """Return the ids of the begin, the end, padding and unknown tokens by transformers' names, None for absent ones.

    Raises InvalidModel for an id that is not of the vocabulary.
    """
    return {f"{name}_token_id": _id(file, theirs) for name, theirs in _NAMES.items() if name != "unk"}


def special_names(file: GgufFile) -> dict[str, str]:
    """Return the same tokens as texts, like `{"bos_token": "<s>"}`, without absent ones."""
    tokens = file.strings(TOKENS)
    ids = {name: _id(file, theirs) for name, theirs in _NAMES.items()}
    return {f"{name}_token": tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def stop_ids(file: GgufFile) -> list[int]:
    """Return the tokens that end a text: those that keys name, and the control tokens that end a turn by their name."""
    named = {_id(file, key) for key in ("eos", *_MORE_ENDS)}
    types = token_types(file)
    by_name = {i for i, token in enumerate(file.strings(TOKENS)) if token in _ENDS and types[i] == CONTROL}
    return sorted({each for each in named if each is not None} | by_name)


def token_types(file: GgufFile) -> list[int]:
    """Return the type of each token. Raises InvalidModel where the numbers of types and tokens differ."""
    tokens, types = file.strings(TOKENS), file.numbers(TOKEN_TYPES)
    if types is None:
        return [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise file.wrong(TOKEN_TYPES, f"a number for each of {len(tokens)} tokens", f"{len(types)}")
    return [int(each) for each in types]


def _id(file: GgufFile, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    token_id, num_tokens = file.integer(key), len(file.strings(TOKENS))
    if token_id >= num_tokens:
        raise file.wrong(key, f"a token of {num_tokens}", token_id)
    return token_id
