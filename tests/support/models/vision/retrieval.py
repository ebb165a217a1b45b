"""Make tiny models that embed texts and images alike: late interaction with pages, and embedded conversations."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, Idefics3ImageProcessorPil, SiglipImageProcessorPil
from transformers.models.colpali.processing_colpali import EXTRA_TOKENS

from tests.support.models.text_files import write_json
from tests.support.models.vision import idefics, qwen_vl
from tests.support.models.vision.llava import SIGLIP
from tests.support.models.vision.saving import Drawing, Parts, draw, save_processor
from tests.support.models.vision.tokenizers import make_tokenizer

VECTOR_SIZE = 16


def make_colpali(folder: Path, **settings: Any) -> None:
    """Write a model whose images have one size, and whose prompts are read both ways."""
    image = "<image>"
    tokenizer = make_tokenizer((image,), bos=True, names={"image_token": image})
    tokenizer.add_tokens(EXTRA_TOKENS)
    text: dict[str, Any] = {
        "model_type": "gemma", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    vlm = AutoConfig.for_model(
        "paligemma", text_config=text, vision_config=SIGLIP | {"projection_dim": 64}, image_token_index=4,
        vocab_size=len(tokenizer), projection_dim=64, hidden_size=64,
    )  # fmt: skip
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    means = (("language_model.norm", 5.0),)
    _write(folder, "ColPali", vlm, Parts("ColPaliProcessor", images, tokenizer, "", settings), Drawing(0.3, means))


def make_colqwen2(folder: Path, **settings: Any) -> None:
    """Write a model whose images have as many tokens as their size asks for."""
    tokenizer = make_tokenizer((*qwen_vl.TOKENS, "<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    vision = {"depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 8}
    vlm = AutoConfig.for_model(
        "qwen2_vl", text_config=qwen_vl.text_config(tokenizer, max_position_embeddings=256), vision_config=vision,
        **qwen_vl.token_ids(tokenizer),
    )  # fmt: skip
    _write(folder, "ColQwen2", vlm, Parts("ColQwen2Processor", qwen_vl.images(), tokenizer, "", settings))


def make_colmodernvbert(folder: Path, **settings: Any) -> None:
    """Write a model whose images are cut into tiles."""
    tokenizer = make_tokenizer((*idefics.TOKENS, "<|begin_of_text|>"))
    text: dict[str, Any] = {
        "model_type": "modernbert", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256, "local_attention": 16,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    }  # fmt: skip
    vision = idefics.TOWER | {"model_type": "siglip_vision_model"}
    vlm = AutoConfig.for_model(
        "modernvbert", text_config=text, vision_config=vision, image_token_id=4, pixel_shuffle_factor=2
    )
    images = Idefics3ImageProcessorPil(**idefics.TILES)
    parts = Parts("ColModernVBertProcessor", images, tokenizer, "", idefics.SETTINGS | settings)
    _write(folder, "ColModernVBert", vlm, parts)


def _write(folder: Path, prefix: str, vlm: Any, parts: Parts, drawing: Drawing | None = None) -> None:
    config = getattr(transformers, f"{prefix}Config")(vlm_config=vlm, embedding_dim=VECTOR_SIZE)
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForRetrieval")(config).eval().float()
    draw(model, drawing or Drawing())
    model.save_pretrained(folder)
    save_processor(folder, parts)
    # Its processors take no template.
    (folder / "chat_template.jinja").unlink()


PAGE_MAKERS = {"colpali": make_colpali, "colqwen2": make_colqwen2, "colmodernvbert": make_colmodernvbert}

INSTRUCTION = "Represent the picture of the cat."


def add_modules(folder: Path, pooling: str = "lasttoken", prompt: str | None = INSTRUCTION, **processing: Any) -> None:
    """Let the folder of a language model that sees embed conversations, as sentence-transformers saves it.

    `processing`: further `processing_kwargs`.
    """
    kinds = (
        ("base.modules.transformer.Transformer", ""),
        ("models.Pooling", "1_Pooling"),
        ("models.Normalize", "2_Normalize"),
    )
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
            for index, (kind, path) in enumerate(kinds)
        ],
    )
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    stated = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": forward, "image": forward, "message": forward | {"format": "structured"}},
        "module_output_name": "token_embeddings",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}, **processing},
    }
    write_json(folder / "sentence_bert_config.json", stated)
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": 64, "pooling_mode": pooling})
    prompts: dict[str, Any] = {"prompts": {"query": "Find pictures."}, "default_prompt_name": None}
    if prompt is not None:
        prompts = {"prompts": prompts["prompts"] | {"document": prompt}, "default_prompt_name": "document"}
    write_json(folder / "config_sentence_transformers.json", prompts | {"model_type": "SentenceTransformer"})
    (folder / "2_Normalize").mkdir()
