"""Prompts with a suffix: the tokens of each format, in the order of the model's card."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.text.infilling import InfillTokens, find_infill_tokens
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from tests.frameworks.conftest import FolderMaker
from tests.support.models.generation_tokenizers import Kind, write_generation_tokenizer

BAR = "\N{FULLWIDTH VERTICAL LINE}"
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FORMATS = {
    "qwen": QWEN,
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    "deepseek": (f"<{BAR}fim▁begin{BAR}>", f"<{BAR}fim▁hole{BAR}>", f"<{BAR}fim▁end{BAR}>"),
}
BEFORE, AFTER = "def engine(", "):\n    return steam\n"


def with_tokens(folder: Path, names: tuple[str, ...]) -> HuggingFaceTokenizer:
    """Add special tokens to the tokenizer of a folder."""
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(list(names))
    tokenizer.save(str(file))
    return HuggingFaceTokenizer(folder, tokenizer.get_vocab_size())


@pytest.mark.parametrize("names", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("kind", ["gpt2", "llama2"])
def test_texts_are_between_the_tokens(copied: FolderMaker, kind: Kind, names: tuple[str, ...]) -> None:
    tokenizer = with_tokens(copied(write_generation_tokenizer, kind=kind), names)
    tokens = tokenizer.infill_tokens
    assert tokens is not None
    assert tuple(tokenizer.token_strings(tokens)) == names
    ids = tokenizer.encode(BEFORE, options=PromptOptions(suffix=AFTER))
    assert ids[:2] == (1, tokens.before), "the first token of the files remains"
    assert ids[-1] == tokens.after
    between = ids.index(tokens.between)
    assert ids[2:between] == tuple(tokenizer.ids_of(BEFORE, add_special_tokens=False))
    # No space is put before a text that continues another one.
    assert tokenizer.decode(ids[2:between]) == BEFORE
    assert "".join(tokenizer.text_of(each) for each in ids[between + 1 : -1]) == AFTER


def test_special_tokens_may_be_left_out(copied: FolderMaker) -> None:
    tokenizer = with_tokens(copied(write_generation_tokenizer, kind="gpt2"), QWEN)
    ids = tokenizer.encode(BEFORE, options=PromptOptions(add_special_tokens=False, suffix=AFTER))
    assert tokenizer.infill_tokens is not None
    assert ids[0] == tokenizer.infill_tokens.before
    assert tokenizer.encode("a", options=PromptOptions(add_special_tokens=False)) == tokenizer.encode("a")[1:]


def test_other_tokenizers_do_not_infill(copied: FolderMaker) -> None:
    folder = copied(write_generation_tokenizer, kind="gpt2")
    assert HuggingFaceTokenizer(folder, 512).infill_tokens is None
    assert with_tokens(folder, QWEN[:2]).infill_tokens is None


def test_tokens_beyond_the_model_are_unknown() -> None:
    ids = dict(zip(QWEN, (7, 8, 9), strict=True))
    assert find_infill_tokens(ids.get, 10) == InfillTokens(7, 8, 9)
    assert find_infill_tokens(ids.get, 9) is None


def test_long_suffix_is_refused(copied: FolderMaker) -> None:
    tokenizer = with_tokens(copied(write_generation_tokenizer, kind="gpt2"), QWEN)
    with pytest.raises(InvalidInput, match="suffix"):
        tokenizer.encode("a", tokenizer.limit(4), PromptOptions(suffix="naïve 你好 " * 1000))
