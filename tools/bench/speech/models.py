"""Create models with an encoder and a decoder: random weights in well-known shapes, with byte tokenizers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SPREAD = 0.05
_LANGUAGE, _END, _START = "<|en|>", 50257, 50258
_ENGLISH, _TRANSCRIBE, _UNTIMED = 50259, 50359, 50363
WHISPER_PROMPT = (_START, _ENGLISH, _TRANSCRIBE, _UNTIMED)
WHISPER_SUPPRESSED = (1, 2, 7, _END)
"""No text ends before its limit."""
PADDING, END = 0, 1
"""Tokens of the models of texts."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`kind`: whisper, marian or t5. `heads`, `layers`: of the encoder and of the decoder each."""

    name: str
    kind: str
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    vocabulary_size: int


WHISPER_TINY = Shape("whisper-tiny", "whisper", 384, 4, 6, 1536, 51_865)
WHISPER_SMALL = Shape("whisper-small", "whisper", 768, 12, 12, 3072, 51_865)
OPUS_MT = Shape("opus-mt", "marian", 512, 6, 8, 2048, 58_101)
FLAN_T5_SMALL = Shape("flan-t5-small", "t5", 512, 8, 6, 1024, 32_128)


def save_model(folder: Path, shape: Shape) -> Path:
    """Write the folder with transformers, if it is absent. The text of each source has as many tokens as allowed."""
    if folder.exists():
        return folder
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = _MODELS[shape.kind](transformers, shape).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed_positions" not in name:
                weight.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    if shape.kind == "whisper":
        _whisper_tokenizer(transformers).save_pretrained(folder)
        transformers.WhisperFeatureExtractor().save_pretrained(folder)
    else:
        _byte_tokenizer(transformers).save_pretrained(folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(_WHISPER if shape.kind == "whisper" else _TEXTS), encoding="utf-8")
    return folder


def _whisper(transformers: Any, shape: Shape) -> Any:
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in _sizes(shape).items()}
    config = transformers.WhisperConfig(
        vocab_size=shape.vocabulary_size,
        d_model=shape.hidden_size,
        bos_token_id=_END,
        eos_token_id=_END,
        pad_token_id=_END,
        decoder_start_token_id=_START,
        **sizes,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _marian(transformers: Any, shape: Shape) -> Any:
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in _sizes(shape).items()}
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary_size,
        d_model=shape.hidden_size,
        max_position_embeddings=512,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=PADDING,
        forced_eos_token_id=None,
        **sizes,
    )
    return transformers.MarianMTModel(config)


def _t5(transformers: Any, shape: Shape) -> Any:
    config = transformers.T5Config(
        vocab_size=shape.vocabulary_size,
        d_model=shape.hidden_size,
        d_kv=64,
        d_ff=shape.intermediate_size,
        num_layers=shape.layers,
        num_heads=shape.heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=PADDING,
    )
    return transformers.T5ForConditionalGeneration(config)


_MODELS = {"whisper": _whisper, "marian": _marian, "t5": _t5}


def _sizes(shape: Shape) -> dict[str, int]:
    return {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": shape.intermediate_size}


def _whisper_tokenizer(transformers: Any) -> Any:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return transformers.WhisperTokenizer(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])


def _byte_tokenizer(transformers: Any) -> Any:
    """Return a tokenizer with a token for each byte, and one that ends a source."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    names = ["<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


_WHISPER = {
    "is_multilingual": True,
    "lang_to_id": {_LANGUAGE: _ENGLISH},
    "task_to_id": {"transcribe": _TRANSCRIBE, "translate": _TRANSCRIBE - 1},
    "no_timestamps_token_id": _UNTIMED,
    "prev_sot_token_id": 50_361,
    "suppress_tokens": list(WHISPER_SUPPRESSED),
    "begin_suppress_tokens": [220, _END],
    "max_length": 448,
    "decoder_start_token_id": _START,
    "bos_token_id": _END,
    "eos_token_id": _END,
    "pad_token_id": _END,
}
_TEXTS = {
    "bad_words_ids": [[PADDING], [END]],
    "decoder_start_token_id": PADDING,
    "eos_token_id": END,
    "pad_token_id": PADDING,
}
