"""Make the folder of a tiny Whisper model: random weights from a fixed seed, and a tokenizer of bytes."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers

from tests.support.models.text_files import write_json

LANGUAGES = ("en", "de", "fr")
FRAMES = 300
"""Of a window: three seconds instead of thirty."""
_MELS = 8
_SECONDS = 3
_SPREAD = 0.3
SAMPLING_RATE = 16_000
_SPECIAL = (
    "<|startoftranscript|>", *(f"<|{each}|>" for each in LANGUAGES), "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
END_ID = 256
START_ID = END_ID + 1
NO_TIMESTAMPS_ID = END_ID + len(_SPECIAL)
_TIMESTAMPS = tuple(f"<|{number / 50:.2f}|>" for number in range(FRAMES // 2 + 1))
VOCABULARY_SIZE = NO_TIMESTAMPS_ID + 1 + len(_TIMESTAMPS)
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_GENERATION = {
    "is_multilingual": True,
    "lang_to_id": {f"<|{each}|>": START_ID + 1 + number for number, each in enumerate(LANGUAGES)},
    "task_to_id": {"translate": START_ID + 4, "transcribe": START_ID + 5},
    "no_timestamps_token_id": NO_TIMESTAMPS_ID,
    "prev_sot_token_id": START_ID + 7,
    "max_initial_timestamp_index": 50,
    "alignment_heads": [[0, 1], [1, 0], [1, 2]],
    # Bytes of ASCII characters: whole words, not parts of characters.
    "suppress_tokens": [1, 2, 7, *(i for i, each in enumerate(_ALPHABET) if not each.isascii() and each != "Ġ"),
                        START_ID, START_ID + 7],
    "begin_suppress_tokens": [32, END_ID],
    "max_length": 64,
    "bos_token_id": END_ID,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
    "decoder_start_token_id": START_ID,
    "return_timestamps": False,
}  # fmt: skip


def save_whisper(folder: Path, *, seed: int = 0, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A model whose texts differ with their sounds. `generation`: further keys of generation_config.json."""
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY_SIZE,
        num_mel_bins=_MELS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=FRAMES // 2,
        max_target_positions=64,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        decoder_start_token_id=START_ID,
        **changes,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.dim() > 1 and "embed_positions" not in name:
                each.normal_(0, _SPREAD)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    transformers.WhisperFeatureExtractor(
        feature_size=_MELS, sampling_rate=SAMPLING_RATE, chunk_length=_SECONDS
    ).save_pretrained(folder)
    write_json(folder / "generation_config.json", {**_GENERATION, **(generation or {})})
    return folder


def _tokenizer() -> transformers.WhisperTokenizer:
    vocabulary = {character: number for number, character in enumerate(_ALPHABET)}
    vocabulary["<|endoftext|>"] = END_ID
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL)})
    tokenizer.add_tokens(list(_TIMESTAMPS))
    return tokenizer
