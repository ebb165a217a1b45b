"""Make small byte-level tokenizers with the special tokens of models that read images, and their chat templates."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SENTENCES = (
    "the cat sat on the mat . the picture shows a red engine on the turntable , and the cat sat on it .",
    "Describe this image in detail. Is there a dog in the second picture? Yes, there is a brown dog.",
    "The first image is larger than the second image; both of them show a house with a blue roof.",
)
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
BASE_TOKENS = (PAD, BOS, EOS, UNKNOWN)
"""The first special tokens of every tokenizer; the index is the id."""
LEARNED_SIZE = 340
"""Tokens of bytes and of pieces of the sentences."""


@lru_cache(maxsize=1)
def _learned() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the tokens and merges that byte-level BPE learns from the sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    return sorted(content["vocab"], key=content["vocab"].get), [tuple(pair) for pair in content["merges"]]


def make_tokenizer(
    special: Sequence[str] = (), *, bos: bool = False, names: dict[str, str] | None = None, **changes: Any
) -> Any:
    """Return a tokenizer: `BASE_TOKENS`, then `special`, then bytes and pieces of words.

    `bos`: a text begins with `<s>`. `names`: attributes that the processor reads, such as image_token.
    """
    tokens, merges = _learned()
    first = (*BASE_TOKENS, *special)
    vocabulary = {token: i for i, token in enumerate((*first, *tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(first))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BASE_TOKENS.index(BOS))]
        )
    settings: dict[str, Any] = {
        "pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN, "padding_side": "left",
        "extra_special_tokens": names or {}, "model_max_length": 4096, "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(settings | changes))


def chat_template(image: str, *, bos: bool = False, image_end: str = "") -> str:
    """Return a template that writes `image` for each image part.

    `bos`: the text begins with `<s>`. `image_end`: it follows an image that a text follows.
    """
    return (
        ("{{ bos_token }}" if bos else "")
        + "{% for message in messages %}<|{{ message['role'] }}|>\n"
        + "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        + "{% for part in message['content'] %}"
        + "{% if part['type'] == 'image' %}"
        + image
        + image_end
        + "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
        + "{% endfor %}{% endif %}\n{% endfor %}"
        + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
