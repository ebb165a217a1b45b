"""Name the families whose logits or embeddings of images are served, by the `model_type` of config.json.

A family needs a class whose outputs are logits or an embedding. The manual lists them: docs/images.md. A test holds
the tables against the mappings of transformers.
"""

from importlib.util import find_spec
from typing import Literal

CLASSIFIERS = (
    "beit", "bit", "clip", "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2",
    "dinov2_with_registers", "donut-swin", "efficientnet", "focalnet", "hgnet_v2", "hiera", "ijepa", "imagegpt",
    "levit", "metaclip_2", "mobilenet_v1", "mobilenet_v2", "mobilevit", "mobilevitv2", "perceiver", "poolformer",
    "pp_lcnet", "pvt", "pvt_v2", "regnet", "resnet", "segformer", "siglip", "siglip2", "swiftformer", "swin",
    "swinv2", "textnet", "vit", "vit_msn",
)  # fmt: skip
"""Families with a class for image classification."""
NEEDED_PACKAGES = {"dinat": "natten", "timm_wrapper": "timm"}
"""Families whose code is in a package that Roundhouse does not install."""
EMBEDDERS = (
    "aimv2_vision_model", "beit", "bit", "clip_vision_model", "convnext", "convnextv2", "deit", "dinov2",
    "dinov2_with_registers", "dinov3_convnext", "dinov3_vit", "donut-swin", "efficientnet", "focalnet", "hiera",
    "ijepa", "levit", "mlcd_vision_model", "mobilenet_v1", "mobilenet_v2", "mobilevit",
    "mobilevitv2", "pixio", "pvt", "pvt_v2", "regnet", "resnet", "segformer", "siglip2_vision_model",
    "siglip_vision_model", "swin", "swinv2", "textnet", "vit", "vit_msn",
)  # fmt: skip
"""Families whose class `…Model` embeds images."""
POOLINGS: dict[str, Literal["cls", "mean", "area"]] = {
    "ijepa": "mean", "pvt": "cls", "pvt_v2": "area", "segformer": "area", "vit_msn": "cls",
}  # fmt: skip
"""Of embedders without a pooler, the pooling of their classifier: of the first state, of all states, of the area."""
UNSERVED_CLASSIFIERS = {
    "shieldgemma2": "a language model that reads a policy beside each image",
    **{family: f"needs the package {package}" for family, package in NEEDED_PACKAGES.items()},
}
"""Classifiers that are not served, and the reason."""
LIMITED_CLASSIFIERS = {
    "pp_lcnet": "its own image processor needs torchvision; served with another one, such as ViTImageProcessor",
    "textnet": "served with do_center_crop: its image processor otherwise keeps the proportions of each image",
}
"""Classifiers that are served under a condition."""


def reason_not_served(model_type: str) -> str | None:
    """Return why a classifier is not served here; None for a family that is served, and for an unknown one."""
    package = NEEDED_PACKAGES.get(model_type)
    if package is not None and find_spec(package) is not None:
        return None
    return UNSERVED_CLASSIFIERS.get(model_type)
