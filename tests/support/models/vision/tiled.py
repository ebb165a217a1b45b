"""Make tiny models with towers of other families: rows of patches, tiles, and learned queries that read them."""

from pathlib import Path

from transformers import (
    AriaImageProcessorPil,
    AutoConfig,
    LlavaNextImageProcessorPil,
    PixtralImageProcessorPil,
)

from tests.support.models.vision.llava import IMAGE, SIGLIP, text_config
from tests.support.models.vision.saving import Parts, write
from tests.support.models.vision.tokenizers import chat_template, make_tokenizer

PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 64, "patch_size": 8,
}  # fmt: skip


def make_mistral3(folder: Path) -> None:
    """Write a model whose rows of merged patches end with a token of their own."""
    names = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    tokenizer = make_tokenizer(tuple(names.values()), bos=True, names=names)
    text = text_config(tokenizer, "mistral", sliding_window=None)
    config = AutoConfig.for_model(
        "mistral3", text_config=text, vision_config=PIXTRAL, image_token_index=4, spatial_merge_size=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    settings = {"patch_size": 8, "spatial_merge_size": 2}
    write(folder, config, Parts("PixtralProcessor", images, tokenizer, chat_template("[IMG]", bos=True), settings))


def make_lighton_ocr(folder: Path) -> None:
    """Write a model whose patches are merged by four, and have no tokens between rows."""
    names = {"image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>"}
    tokenizer = make_tokenizer(tuple(names.values()), names=names)
    config = AutoConfig.for_model(
        "lighton_ocr", text_config=text_config(tokenizer, "qwen3"), vision_config=PIXTRAL, image_token_id=4,
        spatial_merge_size=2, tie_word_embeddings=False,
    )  # fmt: skip
    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    settings = {"patch_size": 8, "spatial_merge_size": 2}
    write(folder, config, Parts("LightOnOcrProcessor", images, tokenizer, chat_template("<|image_pad|>"), settings))


def make_granite4_vision(folder: Path) -> None:
    """Write a model whose layers get features of several layers of the tower, made fewer by queries of a window."""
    tokenizer = make_tokenizer((IMAGE,), bos=True, names={"image_token": IMAGE})
    pinpoints = [[64, 128], [128, 64]]
    vision = SIGLIP | {"hidden_size": 64, "num_hidden_layers": 3, "image_size": 64}
    text = text_config(tokenizer, "granite4_vision_text", num_hidden_layers=4, attention_multiplier=0.25)
    del text["head_dim"]
    config = AutoConfig.for_model(
        "granite4_vision", text_config=text, vision_config=vision, image_token_index=4, image_seq_length=16,
        image_grid_pinpoints=pinpoints, downsample_rate="2/4", deepstack_layer_map=[[-1, 0], [-2, 2]],
        spatial_target_layers=[0, 1, 2, 3], vision_feature_select_strategy="full",
        qformer_config={"num_hidden_layers": 1, "intermediate_size": 64, "cross_attention_frequency": 1,
                        "use_qformer_text_input": False},
    )  # fmt: skip
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}, image_grid_pinpoints=pinpoints
    )
    settings = {"patch_size": 8, "vision_feature_select_strategy": "full", "downsample_rate": "2/4"}
    template = chat_template(IMAGE + "\n", bos=True)
    write(folder, config, Parts("Granite4VisionProcessor", images, tokenizer, template, settings))


def make_aria(folder: Path) -> None:
    """Write a model with experts, whose images are all made large."""
    tokenizer = make_tokenizer((IMAGE,), bos=True, names={"image_token": IMAGE})
    vision = {
        "model_type": "idefics3_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 980, "patch_size": 70,
    }  # fmt: skip
    text = text_config(tokenizer, "aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1)
    config = AutoConfig.for_model(
        "aria", text_config=text, vision_config=vision, image_token_index=4, projector_patch_to_query_dict={196: 8}
    )
    images = AriaImageProcessorPil(max_image_size=980, min_image_size=336)
    settings = {"size_conversion": {980: 8}}
    write(folder, config, Parts("AriaProcessor", images, tokenizer, chat_template(IMAGE, bos=True), settings))


MAKERS = {
    "mistral3": make_mistral3,
    "lighton_ocr": make_lighton_ocr,
    "granite4_vision": make_granite4_vision,
    "aria": make_aria,
}
