"""Tiny models with an encoder and a decoder, random weights from a fixed seed, saved by transformers itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models.causal_folders import byte_tokenizer
from tests.support.models.text_files import change_json, write_json

PAD_ID, EOS_ID, START_ID = 1, 2, 3
VOCABULARY_SIZE = 259
"""More than the tokens of the byte tokenizer: some tokens have no text."""
_SIZE = 32
_OF_BART = {
    "d_model": _SIZE, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
}  # fmt: skip
_OF_T5 = {
    "d_model": _SIZE, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}  # fmt: skip
CLASSES: dict[str, Mapping[str, Any]] = {
    "BartForConditionalGeneration": _OF_BART,
    "BigBirdPegasusForConditionalGeneration": _OF_BART,
    "BlenderbotForConditionalGeneration": _OF_BART,
    "BlenderbotSmallForConditionalGeneration": _OF_BART,
    "LongT5ForConditionalGeneration": {**_OF_T5, "local_radius": 5},
    "M2M100ForConditionalGeneration": _OF_BART,
    "MBartForConditionalGeneration": _OF_BART,
    "MT5ForConditionalGeneration": _OF_T5,
    "MarianMTModel": _OF_BART,
    "PLBartForConditionalGeneration": _OF_BART,
    "PegasusForConditionalGeneration": _OF_BART,
    "PegasusXForConditionalGeneration": {**_OF_BART, "block_size": 8, "num_global_tokens": 4},
    "T5ForConditionalGeneration": {**_OF_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "UMT5ForConditionalGeneration": _OF_T5,
}
"""Every served class, with the sizes of its configuration."""


def encoder_decoder(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a class of transformers whose texts differ with their sources."""
    torch.manual_seed(seed)
    kind = getattr(transformers, architecture)
    config = kind.config_class(
        **{**CLASSES[architecture], **changes},
        vocab_size=VOCABULARY_SIZE,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=START_ID,
        decoder_start_token_id=START_ID,
        forced_eos_token_id=None,
    )
    model = kind(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(2.5 if each.dim() > 1 else 1)
    return model


def save_encoder_decoder(
    folder: Path, architecture: str, *, generation: Mapping[str, Any] | None = None, seed: int = 0, **changes: Any
) -> Path:
    """A folder of such a model, with the byte tokenizer. `generation`: keys of generation_config.json."""
    encoder_decoder(architecture, seed, **changes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    if generation:
        change_json(folder / "generation_config.json", **generation)
    return folder


def save_marian(folder: Path, corpus: list[str], **generation: Any) -> Path:
    """A Marian model with its own tokenizer in two languages, which has no tokenizer.json."""
    import sentencepiece

    folder.mkdir(parents=True)
    text = folder / "corpus.txt"
    text.write_text("\n".join(corpus), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "source"), vocab_size=50, hard_vocab_limit=False, minloglevel=2
    )
    (folder / "source.vocab").unlink()
    (folder / "source.model").rename(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    names = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
    known = dict.fromkeys(["</s>", "<unk>", ">>fra<<", ">>deu<<", *(each for each in names if each != "<s>")])
    vocabulary = {name: i for i, name in enumerate([*known, "<pad>"])}
    pad = len(vocabulary) - 1
    write_json(folder / "vocab.json", vocabulary)
    languages = {"source_lang": "eng", "target_lang": "fra"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", **languages})
    torch.manual_seed(0)
    ends = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    config = transformers.MarianConfig(**_OF_BART, **ends, vocab_size=len(vocabulary), forced_eos_token_id=0)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(2.5 if each.dim() > 1 else 1)
    model.save_pretrained(folder)
    change_json(folder / "generation_config.json", bad_words_ids=[[pad]], **generation)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "marian"
    return folder
