"""Make the folder of a tiny VITS model that speaks."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import VitsConfig, VitsModel, VitsTokenizer

LETTERS = " abcdefghijklmnopqrstuvwxyz'-"
SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32, "flow_size": 16,
    "spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [8, 8], "upsample_kernel_sizes": [16, 16],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2,
    "duration_predictor_flow_bins": 4, "duration_predictor_filter_channels": 16,
}  # fmt: skip


def save_speaking_model(folder: Path, num_speakers: int = 1, letters: str = LETTERS, **more: Any) -> Path:
    """Write a tiny VITS model of random weights and its tokenizer; return the folder. `more`: of the configuration."""
    vocabulary = ["<pad>", *letters, "<unk>"]
    file = folder / "vocab.json"
    file.write_text(json.dumps({token: number for number, token in enumerate(vocabulary)}))
    VitsTokenizer(str(file), phonemize=False).save_pretrained(folder)
    torch.manual_seed(5)
    embedding = {"speaker_embedding_size": 8} if num_speakers > 1 else {}
    config = VitsConfig(vocab_size=len(vocabulary), num_speakers=num_speakers, **{**SIZES, **embedding, **more})
    model = VitsModel(config)
    with torch.no_grad():
        # Zeros as they are initialized would hide the noise, the speaker and the text.
        for name, parameter in model.named_parameters():
            if "conv_post" in name:
                parameter.normal_(0, 0.02)
            elif "emb" in name or "project" in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder
