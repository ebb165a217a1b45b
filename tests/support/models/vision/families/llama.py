"""Make tiny Llama models that read images as tiles: by layers of cross-attention, or among the text."""

from pathlib import Path

import torch
import transformers

from tests.support.models.vision.saving_b import save, save_parts, template
from tests.support.models.vision.tokenizers_b import make_tokenizer

_LAYERS = 4


def make_mllama(folder: Path) -> None:
    """Write a Llama 3.2 Vision model: of 4 layers, 1 and 3 read up to 4 tiles of 17 rows an image."""
    tokenizer = make_tokenizer("<|python_tag|>")
    # The image token stands behind the vocabulary of the model: it is read and never written.
    tokenizer.add_tokens([transformers.AddedToken("<|image|>", special=True, normalized=False)])
    image = tokenizer.convert_tokens_to_ids("<|image|>")
    config = transformers.MllamaConfig(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 3, "num_global_layers": 2, "attention_heads": 2,
            "intermediate_size": 48, "vision_output_dim": 96, "image_size": 32, "patch_size": 8, "max_num_tiles": 4,
            "intermediate_layers_indices": [0, 2],
        },
        text_config={
            "vocab_size": image, "hidden_size": 64, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 512,
            "cross_attention_layers": [1, 3], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
            },
        },
        image_token_index=image,
    )  # fmt: skip
    images = transformers.MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=4)
    processor = transformers.MllamaProcessor(images, tokenizer)
    save(folder, config, processor, template("<|image|>", "{{ bos_token }}"), prepare=_open_gates)


def _open_gates(model: torch.nn.Module) -> None:
    """Open the gates through which images are read; a new model has them closed."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("gate", "gate_attn", "gate_ffn")):
                weight.fill_(0.8)


def make_llama4(folder: Path) -> None:
    """Write a Llama 4 model: tiles of 4 tokens; chunked layers, one without positions, experts in every second.

    Its processor needs torchvision.
    """
    marks = ("<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
    tokenizer = make_tokenizer("<|image|>", *marks)
    start, end, patch = tokenizer.convert_tokens_to_ids(list(marks[:3]))
    config = transformers.Llama4Config(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
            "vision_output_dim": 64, "image_size": 32, "patch_size": 8, "projector_input_dim": 64,
            "projector_output_dim": 64,
        },
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 48, "intermediate_size_mlp": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 512, "num_local_experts": 4, "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 32, "floor_scale": 16,
        },
        boi_token_index=start,
        eoi_token_index=end,
        image_token_index=patch,
    )  # fmt: skip
    processor = {
        "processor_class": "Llama4Processor",
        "patch_size": 8,
        "image_processor": {
            "image_processor_type": "Llama4ImageProcessor", "size": {"height": 32, "width": 32}, "max_patches": 3,
        },
    }  # fmt: skip
    save_parts(folder, config, tokenizer, template("<|image|>"), processor)
