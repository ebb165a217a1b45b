"""List the second part of the model types of image-text-to-text: their makers, limits, and those that are not built."""

from collections.abc import Callable
from pathlib import Path

from tests.support.models.vision.families import (
    audio,
    cohere,
    glm,
    grids,
    internvl,
    llama,
    minicpm,
    ocr,
    others,
    torchvision_more,
    torchvision_only,
)

MAKERS: dict[str, Callable[[Path], None]] = {
    "aya_vision": cohere.make_aya_vision,
    "cohere_compass": cohere.make_cohere_compass,
    "cosmos3_edge": grids.make_cosmos3_edge,
    "cosmos3_omni": grids.make_cosmos3_omni,
    "deepseek_ocr2": ocr.make_deepseek_ocr2,
    "deepseek_vl": others.make_deepseek_vl,
    "deepseek_vl_hybrid": others.make_deepseek_vl_hybrid,
    "dots3_note": grids.make_dots3_note,
    "ernie4_5_vl_moe": grids.make_ernie4_5_vl_moe,
    "exaone4_5": grids.make_exaone4_5,
    "glm46v": glm.make_glm46v,
    "glm4v": glm.make_glm4v,
    "glm4v_moe": glm.make_glm4v_moe,
    "glm5_next": glm.make_glm5_next,
    "glm_ocr": glm.make_glm_ocr,
    "glmga": glm.make_glmga,
    "got_ocr2": ocr.make_got_ocr2,
    "hunyuan_vl": grids.make_hunyuan_vl,
    "hyperclovax_vision_v2": grids.make_hyperclovax_vision_v2,
    "internvl": internvl.make_internvl,
    "minicpmv4_6": minicpm.make_minicpmv4_6,
    "minicpmv4_7": minicpm.make_minicpmv4_7,
    "mllama": llama.make_mllama,
    "ovis2": others.make_ovis2,
    "paddleocr_vl": grids.make_paddleocr_vl,
    "pp_chart2table": ocr.make_pp_chart2table,
    "qianfan_ocr": internvl.make_qianfan_ocr,
}
"""Model type to the function that writes its folder."""
TORCHVISION_MAKERS: dict[str, Callable[[Path], None]] = {
    "cohere2_vision": cohere.make_cohere2_vision,
    "inkling2": torchvision_more.make_inkling2,
    "inkling_mm_model": audio.make_inkling_mm_model,
    "kimi_k25": torchvision_only.make_kimi_k25,
    "llama4": llama.make_llama4,
    "minicpm_ocr": minicpm.make_minicpm_ocr,
    "minimax_m3_vl": torchvision_only.make_minimax_m3_vl,
    "mistral_large4": torchvision_only.make_mistral_large4,
    "molmo2": torchvision_only.make_molmo2,
    "muse_glimmer": torchvision_more.make_muse_glimmer,
    "muse_spark": audio.make_muse_spark,
    "nemotron_h_omni": audio.make_nemotron_h_omni,
    "phi4_multimodal": audio.make_phi4_multimodal,
    "step3p7": torchvision_more.make_step3p7,
    "unlimited_ocr": torchvision_more.make_unlimited_ocr,
}
"""The same for types whose processor needs torchvision: without it the model and the tokenizer load."""
MAX_IMAGES: dict[str, int] = {}
"""Model type to the most images of a request, where that is a limit of the type."""
NEEDS_IMAGE = frozenset({"got_ocr2", "pp_chart2table"})
"""Model types whose processor refuses text alone."""
PLAIN_CALL = frozenset({"got_ocr2", "phi4_multimodal"})
"""Model types whose processor has no `apply_chat_template` that works: that of its tokenizer, then `processor(…)`."""
ASKS_KINDS = frozenset({"cosmos3_edge"})
"""Model types that need `mm_token_type_ids`, which their processor gives only where it is asked."""

_ENCODER_DECODER = "encoder-decoder"
NOT_BUILT: dict[str, str] = {
    **dict.fromkeys(TORCHVISION_MAKERS, "its processor needs torchvision; TORCHVISION_MAKERS makes it"),
    **dict.fromkeys(
        ("blip", "florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop", "vision-encoder-decoder"),
        _ENCODER_DECODER,
    ),
    "evolla": "it reads proteins, no images",
    "mistral4": "the class that transformers names for it reads no images",
    "perception_lm": "its tower needs timm, and its processor torchvision",
    "pi0": "it moves a robot and writes no text; its processor needs torchvision",
}  # fmt: skip
"""Model type to the reason."""
