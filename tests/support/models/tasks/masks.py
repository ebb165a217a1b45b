"""Run transformers' pipeline of masks without torchvision, and read masks that are answered."""

import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from transformers.models.sam.image_processing_pil_sam import _rle_to_mask

Pixels = NDArray[np.bool_]
FIELDS = ("masks", "scores", "rle_mask", "bounding_boxes")


def plain_nms(boxes: list[list[float]], scores: list[float], threshold: float) -> list[int]:
    """Return the numbers of the boxes that stay, the best first: those that no better one of them overlaps by more.

    A share is a float32 and the threshold a float64, as in torchvision.
    """
    kept: list[int] = []
    for number in sorted(range(len(scores)), key=lambda each: -scores[each]):
        if all(_share(boxes[number], boxes[other]) <= threshold for other in kept):
            kept.append(number)
    return kept


def _share(one: list[float], other: list[float]) -> float:
    """Return the share of two boxes that both have; 0 for two without any area."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(np.float32(common) / np.float32(areas - common)) if areas - common else 0.0


def mask_pipeline(folder: Path) -> Any:
    """Return a function of a picture and parameters: what transformers' pipeline answers, without `is_last`."""
    pipeline: Any = transformers.pipeline("mask-generation", model=str(folder), device="cpu")

    def select(masks: list[Any], scores: torch.Tensor, boxes: torch.Tensor, threshold: float) -> tuple[Any, ...]:
        kept = plain_nms(boxes.tolist(), scores.tolist(), threshold)
        return [_rle_to_mask(masks[each]) for each in kept], scores[kept], [masks[each] for each in kept], boxes[kept]

    # Its own needs torchvision.
    pipeline.image_processor.post_process_for_mask_generation = select

    def run(picture: Image.Image, **parameters: Any) -> dict[str, Any]:
        answer = pipeline(picture, **parameters)
        return {name: answer[name] for name in FIELDS if name in answer}

    return run


def masks_of_objects(folder: Path, picture: Image.Image, **prompts: Any) -> tuple[Pixels, NDArray[np.float32]]:
    """Return the masks [objects, masks, height, width] and scores of processor and model, called directly."""
    processor = transformers.AutoProcessor.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    named = {name: [value] for name, value in prompts.items() if name.startswith("input_")}
    inputs = processor(picture, return_tensors="pt", **named)
    with torch.inference_mode():
        outputs = model(**inputs, multimask_output=prompts.get("multimask_output", True))
    sizes = inputs["original_sizes"], inputs["reshaped_input_sizes"]
    threshold = prompts.get("mask_threshold", 0.0)
    [masks] = processor.image_processor.post_process_masks(outputs.pred_masks, *sizes, mask_threshold=threshold)
    return masks.numpy(), outputs.iou_scores[0].numpy()


def pixels_of(mask: str) -> Pixels:
    """Return the pixels of a mask: a PNG file in base64."""
    return np.asarray(Image.open(io.BytesIO(b64decode(mask)))) > 0


def check_masks(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise AssertionError unless an answer has the masks of `mask_pipeline`, their scores, boxes and runs."""
    assert ours.keys() == theirs.keys()
    assert len(ours["masks"]) == len(theirs["masks"])
    for mask, pixels in zip(ours["masks"], theirs["masks"], strict=True):
        np.testing.assert_array_equal(pixels_of(mask), pixels)
    np.testing.assert_allclose(np.array(ours["scores"]).reshape(-1), theirs["scores"].numpy(), atol=1e-5)
    assert ours.get("rle_mask") == theirs.get("rle_mask")
    if "bounding_boxes" in theirs:
        np.testing.assert_array_equal(np.array(ours["bounding_boxes"]).reshape(-1, 4), theirs["bounding_boxes"])
