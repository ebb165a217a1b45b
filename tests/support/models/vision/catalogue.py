"""List all model types of transformers that read images and write text, with the makers of tiny ones."""

from collections.abc import Callable
from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.support.models.vision import catalogue_a, catalogue_b

MODEL_TYPES: dict[str, str] = dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
"""Model type to the class that generates."""
MAKERS: dict[str, Callable[[Path], None]] = catalogue_a.MAKERS | catalogue_b.MAKERS
"""Model type to the function that writes its folder."""
NEEDS_IMAGE = catalogue_a.NEEDS_IMAGE | catalogue_b.NEEDS_IMAGE
"""Model types that read no text without an image."""
NOT_BUILT = catalogue_a.NOT_BUILT | catalogue_b.NOT_BUILT
"""Model type to the reason."""

NEEDS_ALWAYS = "it reads no text without an image"
NOT_GENERATED = "transformers' `generate` fails with a conversation of several images"
CACHE_DIFFERS = "its logits with a cache differ from those without"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("dots3_note", "glm5_next", "mistral_large4"), CACHE_DIFFERS),
    **dict.fromkeys(("blip-2", "instructblip", "idefics", "kosmos-2"), NEEDS_ALWAYS),
    **dict.fromkeys(("kosmos-2.5", "git", "got_ocr2"), NOT_GENERATED),
}
"""Model type to the reason why it is refused at load."""
BY_CACHES = frozenset(
    {
        *("gemma4", "granite4_vision", "hunyuan_vl", "lfm3_vl", "minicpmv4_6", "minicpmv4_7", "mllama", "ovis2"),
        *("paligemma", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    }
)
"""Model types that run with transformers' own caches."""
TORCHVISION_MAKERS = catalogue_b.TORCHVISION_MAKERS
"""Model type to the function that writes its folder, where the processor needs torchvision."""
NEEDS_TORCHVISION = (TORCHVISION_MAKERS.keys() & MODEL_TYPES.keys()) - {"mistral_large4"}
"""Model types that are served where torchvision is installed beside the server."""
READ_VIDEOS = frozenset(
    {
        *("cohere_compass", "cosmos3_edge", "cosmos3_omni", "ernie4_5_vl_moe", "exaone4_5", "gemma4", "glm46v"),
        *("glm4v", "glm4v_moe", "glm_ocr", "glmga", "hyperclovax_vision_v2", "internvl", "lfm3_vl"),
        *("llava_next_video", "llava_onevision", "molmo2", "muse_glimmer", "qwen2_5_omni_thinker", "qwen2_5_vl"),
        *("qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp"),
        *("smolvlm", "video_llama_3", "video_llava"),
    }
)
"""Model types that read videos where torchvision is installed."""
