"""Build a small byte-level tokenizer with the special tokens of a processor."""

from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
_ALWAYS = (PAD, BOS, EOS, "<unk>")


def make_tokenizer(*specials: str, **named: str) -> Any:
    """Return a fast tokenizer: special tokens first, then a token for each byte. `named`: attributes of it."""
    tokens = list(dict.fromkeys((*_ALWAYS, *specials, *named.values())))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(tokens + letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token="<unk>",
        extra_special_tokens=named or None,
    )
