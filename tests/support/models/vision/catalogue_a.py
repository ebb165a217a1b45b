"""List the makers of the first part of the model types that read images, and those without one."""

from collections.abc import Callable
from pathlib import Path

from tests.support.models.vision import bridged, discrete, gemma, idefics, llava, qwen_vl, tiled

MAKERS: dict[str, Callable[[Path], None]] = {
    **qwen_vl.MAKERS,
    **gemma.MAKERS,
    **llava.MAKERS,
    **idefics.MAKERS,
    **tiled.MAKERS,
    **bridged.MAKERS,
    **discrete.MAKERS,
}
"""Model type to the function that writes its folder."""
MAX_IMAGES = dict.fromkeys(("blip-2", "instructblip", "git", "kosmos-2", "kosmos-2.5"), 1)
"""Model types that read only so many images."""
NEEDS_IMAGE = frozenset({"paligemma", "blip-2", "instructblip", "kosmos-2", "kosmos-2.5"})
"""Model types that read no text without an image."""
NOT_BUILT: dict[str, str] = {
    **dict.fromkeys(("lfm2_vl", "gemma4_unified"), "its only image processor in transformers needs torchvision"),
    **dict.fromkeys(("gemma3n", "fast_vlm"), "its tower needs timm"),
    "fuyu": "its image processor without torchvision fails in transformers: it transposes a tensor as an array",
    "instructblipvideo": "it reads videos, and its video processor needs torchvision",
    "shieldgemma2": "its processor replaces the text by one prompt for each image and policy: it classifies images",
    "diffusion_gemma": "it writes blocks of tokens by diffusion and has no logits of a next token",
}
"""Model type to the reason."""
