"""Tokenizers made of GGUF metadata give the tokens of their originals and of llama.cpp's own algorithms."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from frameworks.core.errors import InvalidModel
from frameworks.generation.text.detokenizing import detokenizer_of
from frameworks.text.gguf.header import read_header
from frameworks.text.gguf.special_tokens import stop_ids
from frameworks.text.gguf.tokenizer import read_tokenizer, read_tokenizer_config
from tests.support.gguf_files import write_gguf

TINY_LLAMA = Path("app/embedded/tiny_llama")
NORMAL, UNKNOWN, CONTROL, BYTE = (
    gguf.TokenType.NORMAL, gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.BYTE,
)  # fmt: skip
TEXTS = [
    "Hello, world! It's 12345 o'clock.\n\n\tTabs  and   spaces   ",
    "Straße, naïve café — “quotes” … 日本語のテキスト и русский текст",
    "def f(x):\n    return {'a': x**2}  # comment\r\n",
    "I'LL we've They'D 3.14159 $100,000 emoji 🎉👍🏽 end",
    "<|user|>not a real turn<|end|> </s>",
    "",
    " ",
]


def random_texts(count: int) -> list[str]:
    numbers = random.Random(0)
    alphabet = "aábcd eE'sSrRtT0123 \n\t.,!?-_<|>日本語é🎉"
    return ["".join(numbers.choices(alphabet, k=numbers.randrange(60))) for _ in range(count)]


def header_of(path: Path, write: Callable[[gguf.GGUFWriter], None]) -> Any:
    writer = gguf.GGUFWriter(path, "llama")
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    # The package writes no file without tensors to its end.
    return read_header(path)


def test_byte_level_tokens_are_those_of_original(tmp_path: Path) -> None:
    made = read_tokenizer(read_header(write_gguf(TINY_LLAMA, tmp_path / "m.gguf")))
    original = Tokenizer.from_file(str(TINY_LLAMA / "tokenizer.json"))
    for text in TEXTS + random_texts(300):
        expected = original.encode(text).ids
        assert made.encode(text).ids == expected, text
        assert made.decode(expected, skip_special_tokens=False) == original.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_texts_are_split_as_by_transformers(tmp_path: Path, pre: str) -> None:
    """transformers' table of expressions is of another origin."""
    from tokenizers import Regex, pre_tokenizers

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b"])

    made = read_tokenizer(header_of(tmp_path / "m.gguf", write))
    assert made.pre_tokenizer is not None
    split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
    theirs = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for text in TEXTS + random_texts(300):
        assert made.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), text


def test_whole_words_need_no_merges_in_llama_3(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(["a", "b", "c", "ab", "abc", "<s>"])
        writer.add_token_types([NORMAL] * 5 + [CONTROL])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(5)

    made = read_tokenizer(header_of(tmp_path / "m.gguf", write))
    # Texts begin with <s> although no key says so.
    assert made.encode("abc").ids == [5, 4]


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[Any]]:
    """A vocabulary as Llama 2's: special tokens, bytes, then pieces with falling scores."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = " ".join(TEXTS).replace(" ", "▁")
    letters = sorted(set("aábcdeEsSrRtT0123▁.,'!?-_" + "Hello"))
    pieces = {words[i : i + size] for i in range(len(words)) for size in (2, 3, 4, 5)}
    # A piece is reached by merges only if its halves are pieces.
    known = set(letters)
    for piece in sorted(pieces, key=lambda each: (len(each), each)):
        if any(piece[:cut] in known and piece[cut:] in known for cut in range(1, len(piece))):
            known.add(piece)
    merged = sorted(known - set(letters))
    random.Random(0).shuffle(merged)
    tokens = [*special, *byte_tokens, *merged, *letters]
    scores = [0.0] * 259 + [float(-i) for i in range(len(merged) + len(letters))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(merged) + len(letters))]
    return tokens, scores, types


def by_llama_cpp(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """llama.cpp's llm_tokenizer_spm: the pair of neighbours whose token has the highest score is joined first."""
    ids = {token: i for i, token in enumerate(tokens)}
    symbols = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        pairs = [
            (-scores[ids[first + second]], i)
            for i, (first, second) in enumerate(pairwise(symbols))
            if first + second in ids
        ]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    found = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def test_sentencepiece_tokens_are_those_of_llama_cpp(tmp_path: Path) -> None:
    tokens, scores, types = sentencepiece_vocabulary()

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    made = read_tokenizer(header_of(tmp_path / "m.gguf", write))
    detokenizer = detokenizer_of(made)
    joined = 0
    numbers, plain = random.Random(1), " ".join(TEXTS[:4])
    cuts = [plain[(start := numbers.randrange(len(plain))) : start + numbers.randrange(40)] for _ in range(200)]
    for text in TEXTS[:4] + cuts + random_texts(100):
        expected = by_llama_cpp(text, tokens, scores)
        assert made.encode(text).ids == [1, *expected], text
        assert detokenizer.decode(expected) == text
        joined += len(text) - len(expected) > 3
    assert joined > 20
    assert made.encode("</s>", add_special_tokens=False).ids == [2]


def test_templates_and_ends_are_read(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "<|im_end|>", "<|x|>", "<|eot_id|>", "<|end|>"])
        writer.add_token_types([NORMAL, CONTROL, CONTROL, CONTROL, NORMAL])
        writer.add_eos_token_id(2)
        writer.add_chat_template([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])

    header = header_of(tmp_path / "m.gguf", write)
    config = read_tokenizer_config(header)
    assert {each["name"]: each["template"] for each in config["chat_template"]} == {"default": "D", "tool_use": "T"}
    assert config["eos_token"] == "<|x|>"
    # Named by a key, and two by their names; the last is no control token.
    assert stop_ids(header) == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", "bert", "tokenizer.ggml.model: expected gpt2 or llama, got bert"),
        ("tokenizer.ggml.pre", "new", "tokenizer.ggml.pre: expected one of .*, got new"),
        ("tokenizer.ggml.model", "llama", "tokenizer.ggml.scores: expected a score for each of 3 tokens, got 0"),
    ],
)
def test_unknown_vocabulary_is_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"} | {key: value}
        for name, text in values.items():
            writer.add_string(name, text)
        writer.add_token_list(["a", "b", "ab"])

    with pytest.raises(InvalidModel, match=message):
        read_tokenizer(header_of(tmp_path / "m.gguf", write))


def test_inconsistent_vocabulary_is_refused(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b"])
        writer.add_token_types([NORMAL])
        writer.add_eos_token_id(7)

    header = header_of(tmp_path / "m.gguf", write)
    with pytest.raises(InvalidModel, match="token_type: expected a number for each of 2 tokens, got 1"):
        read_tokenizer(header)
    with pytest.raises(InvalidModel, match="eos_token_id: expected a token of 2, got 7"):
        read_tokenizer_config(header)


def test_original_is_what_the_test_compares() -> None:
    """The embedded model's tokenizer splits as GPT-2's, which the file states."""
    steps = json.loads((TINY_LLAMA / "tokenizer.json").read_text())["pre_tokenizer"]
    assert (steps["type"], steps["use_regex"]) == ("ByteLevel", True)
