"""Tiny decoders that embed texts, random weights from a fixed seed, saved by transformers itself."""

from pathlib import Path
from typing import Any

from tests.support.models.causal_folders import causal_model
from tests.support.models.generation_tokenizers import EOS, write_generation_tokenizer
from tests.support.models.text_files import change_json, write_json, write_sentence_transformers

HIDDEN_SIZE = 64
PROMPTS = {"query": "Instruct: Find the engine of steam.\nQuery:", "document": ""}
_VOCABULARY_SIZE = 512
_EOS_ID = 2


def save_decoder_embedder(
    folder: Path,
    model_type: str = "qwen3",
    *,
    has_head: bool = True,
    max_seq_length: int | None = None,
    normalize: bool = True,
) -> Path:
    """A decoder with last-token pooling, as Qwen3-Embedding and E5-Mistral are published.

    `has_head`: saved as a ForCausalLM model. The tokenizer appends `</s>`, its padding token too, and pads on the left.
    """
    model = causal_model(model_type, vocab_size=_VOCABULARY_SIZE, eos_token_id=_EOS_ID, pad_token_id=None)
    (model if has_head else model.model).save_pretrained(folder)
    write_decoder_tokenizer(folder)
    write_sentence_transformers(
        folder, "lasttoken", normalize=normalize, max_seq_length=max_seq_length, dimension=HIDDEN_SIZE
    )
    write_json(folder / "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": None})
    return folder


def write_decoder_tokenizer(folder: Path, **changes: Any) -> None:
    """A byte-level tokenizer that puts `<s>` before a text and `</s>` after it. `changes`: of its configuration."""
    write_generation_tokenizer(folder, "gpt2", behind=True)
    change_json(folder / "tokenizer_config.json", **({"pad_token": EOS, "padding_side": "left"} | changes))
