"""Name the model types of the census that have no folder here, each with its reason."""

from tests.support.models.tasks.catalogue import census

_TORCHVISION = "its only image processor in transformers needs torchvision"
_FAMILIES: dict[str, str] = {
    **dict.fromkeys(
        (
            "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4", "pp_ocrv5_mobile_det", "pp_ocrv5_server_det",
            "pp_ocrv6_medium_det", "pp_ocrv6_small_det", "rf_detr", "sapiens2", "tipsv2_dpt", "chmv2", "depth_pro",
            "tipsv2",
        ),
        _TORCHVISION,
    ),
    "zoedepth": "the last step of its image processor needs torchvision",
    "videoprism": "its only processor reads videos and needs torchvision",
    "omdet-turbo": "its model needs classes and a task, which the pipeline does not give",
    **dict.fromkeys(("edgetam", "sam2", "sam2_video", "sam3_tracker", "sam3_video"), _TORCHVISION),
    **dict.fromkeys(("vivit", "vjepa2"), "its processor of videos needs torchvision"),
    **dict.fromkeys(
        ("edgetam_video", "videoprism_vision_model"),
        "transformers names no image processor for it, and its processors of videos need torchvision",
    ),
    "videomt": "it reads videos, and its video processor needs torchvision",
    "layoutlmv2": "its image part needs detectron2",
}  # fmt: skip
"""Model types that no task can build."""
_PAIRS: dict[tuple[str, str], str] = {
    ("token-classification", "bros"): "its model needs boxes, which the pipeline does not give",
    ("question-answering", "lxmert"): "its model needs features of a picture beside the text",
    ("fill-mask", "tapas"): "its tokenizer reads tables, and the pipeline gives texts",
    ("zero-shot-classification", "tapas"): "its tokenizer reads tables, and the pipeline gives texts",
}
"""Model types that one task cannot build or run."""

NOT_BUILT: dict[tuple[str, str], str] = _PAIRS | {
    (task, model_type): _FAMILIES[model_type] for task, model_type in census() if model_type in _FAMILIES
}
"""Task and model type to the reason."""
WITHOUT_PIPELINE = {
    "question-answering": "transformers has no pipeline of it any more",
    "mask-generation": "its last step needs torchvision; that of the server does not",
}
"""Tasks whose folders run by their class and processor."""
