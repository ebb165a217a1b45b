"""Create models of Whisper: random weights in well-known shapes, with a byte tokenizer."""

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


@dataclass(frozen=True, slots=True)
class Shape:
    """`heads`, `layers`: of the encoder and of the decoder each."""

    name: str
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    vocabulary_size: int


WHISPER_TINY = Shape("whisper-tiny", 384, 4, 6, 1536, 51_865)
WHISPER_SMALL = Shape("whisper-small", 768, 12, 12, 3072, 51_865)


def save_model(folder: Path, shape: Shape) -> Path:
    """Write the folder with transformers, if it is absent. The text of each source has as many tokens as allowed."""
    if folder.exists():
        return folder
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = _whisper(transformers, shape).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed_positions" not in name:
                weight.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    _whisper_tokenizer(transformers).save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(_WHISPER), encoding="utf-8")
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


def _sizes(shape: Shape) -> dict[str, int]:
    return {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": shape.intermediate_size}


def _whisper_tokenizer(transformers: Any) -> Any:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return transformers.WhisperTokenizer(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])


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
