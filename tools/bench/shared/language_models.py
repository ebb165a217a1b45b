"""Create Llamas with random weights from a fixed seed, and a tokenizer with one token per word."""

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY_SIZE = 4096
CONTEXT_TOKENS = 2048
SHORTEST_PROMPT, LONGEST_PROMPT = 10, 150
_BYTES = 256
_SPACE = "Ġ"  # a byte-level vocabulary's letter for the space
_END = "<|end|>"


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Members of a Llama's config.json. `name`: that of its folder; `label`: that in the table."""

    name: str
    label: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int

    @property
    def num_multiplied(self) -> int:
        """Return the weights that each token is multiplied by: all but the embedding and the norms."""
        kept = self.hidden_size * self.num_key_value_heads // self.num_heads
        of_layer = self.hidden_size * (2 * self.hidden_size + 2 * kept + 3 * self.intermediate_size)
        return self.num_layers * of_layer + VOCABULARY_SIZE * self.hidden_size


SMALL = LlamaShape("llama-small", "Llama of 6.5 M parameters", 256, 6, 4, 2, 688)
LARGE = LlamaShape("llama-large", "Llama of 94 M parameters", 768, 14, 12, 4, 2048)
BILLION = LlamaShape("llama-billion", "Llama of 1.1 B parameters", 2048, 22, 32, 4, 5632)
SEVEN_BILLION = LlamaShape("llama-seven-billion", "Llama of 6.5 B parameters", 4096, 32, 32, 32, 11008)
EIGHT_HEADS = LlamaShape("llama-eight-heads", "Llama of 7.0 B parameters with 8 key heads", 4096, 32, 32, 8, 14336)
"""The layers of Llama 3.1 8B, whose vocabulary is larger."""


def save_llama(
    folder: Path,
    shape: LlamaShape,
    dtype: str = "float32",
    device: str = "cpu",
    context_tokens: int = CONTEXT_TOKENS,
) -> Path:
    """Write the folder with transformers. No token ends a text.

    `dtype`: torch's name of it. `device`: the weights are drawn there; a GPU draws billions in seconds.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=context_tokens,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        model: Any = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        # Only words are ever the most probable token: each token is a word, each piece is one token.
        model.lm_head.weight[:_BYTES] = 0
        model.lm_head.weight[-1] = 0
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def prompt(num_tokens: int, choose: random.Random) -> str:
    """Return a text of this number of tokens, with random words of the vocabulary."""
    return "".join(choose.choices(_WORDS, k=num_tokens))


def mixed_prompts(count: int, seed: int) -> list[str]:
    """Return prompts of 10 to 150 tokens, evenly spread; another seed gives other words, so no prefix is cached."""
    choose = random.Random(seed)
    step = (LONGEST_PROMPT - SHORTEST_PROMPT) / max(1, count - 1)
    lengths = [round(SHORTEST_PROMPT + place * step) for place in range(count)]
    choose.shuffle(lengths)
    return [prompt(length, choose) for length in lengths]


def _syllables() -> list[str]:
    return [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


_WORDS = [
    f" {first}{second}"
    for first, second in itertools.islice(
        itertools.product(_syllables(), repeat=2), VOCABULARY_SIZE - _BYTES - 1 - 2 * len(_syllables())
    )
]


def make_tokenizer() -> Any:
    """Return a byte-level BPE: bytes, syllables, syllables after a space, and words of two syllables."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    syllables = _syllables()
    merges = [
        *((syllable[0], syllable[1]) for syllable in syllables),
        *((_SPACE, syllable) for syllable in syllables),
        *((_SPACE + word[1:3], word[3:]) for word in _WORDS),
    ]
    tokens = [*letters, *("".join(merge) for merge in merges), _END]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=_END)
