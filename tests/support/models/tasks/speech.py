"""Make the folder of a tiny CTC model that reads speech."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES

TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
LAYERS: dict[str, Any] = {
    "vocab_size": len(TOKENS), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "conv_dim": [16, 16, 16], "conv_kernel": [10, 8, 4], "conv_stride": [8, 8, 5],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "pad_token_id": 0, "squeeze_factor": 1,
}  # fmt: skip


def save_speech_model(folder: Path, model_type: str) -> Path:
    """Write a tiny model of random weights, its tokenizer and feature extractor; the folder."""
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(TOKENS)}))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(model_type, **LAYERS)
    model = getattr(transformers, MODEL_FOR_CTC_MAPPING_NAMES[model_type])(config)
    with torch.no_grad():
        # Logits of small weights hardly differ from frame to frame.
        model.lm_head.weight.normal_(0, 3)
    model.save_pretrained(folder)
    return folder
