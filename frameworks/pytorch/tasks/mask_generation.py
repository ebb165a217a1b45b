"""Generate masks: the pipeline of transformers with points and boxes, with bounds, and without torchvision.

The pipeline of transformers runs the image encoder while it prepares an input. Here the first run of a crop does so.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from transformers.pipelines.mask_generation import MaskGenerationPipeline

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.tasks.masks import FoundMasks, PackedMasks, RunLengths, drop_overlapping
from frameworks.tasks.mask_prompts import MASKS_OF_A_POINT, PROMPTS

_RUN_BYTES = 1 << 30
_CPU_RUN_BYTES = 1 << 28
"""Of the masks of a run. On a CPU larger runs are not faster, and other requests wait for them longer."""
# Of a mask at the size of the model and at that of the image: float32, and booleans that are compared.
_PIXEL_BYTES = 6
_USUAL_POINTS = 64

Row = dict[str, Any]


class EncodedCrop:
    """The pixels of a crop and the output of the image encoder, which all runs of the crop share.

    Any thread may call it. The output is released after the last run. `pixels`: [1, channels, height, width].
    """

    def __init__(self, pixels: torch.Tensor, num_runs: int) -> None:
        self._pixels = pixels
        self._runs_left = num_runs
        self._lock = threading.Lock()
        self._encoded: dict[str, Any] = {}

    def encode(self, model: Any) -> dict[str, Any]:
        """Return the arguments that the model takes in place of the pixels."""
        with self._lock:
            if not self._encoded:
                found = model.get_image_embeddings(self._pixels.to(model.device))
                names = ("image_embeddings", "intermediate_embeddings")
                # Those of SAM-HQ are a tuple.
                self._encoded = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=False))
            return self._encoded

    def end_run(self) -> None:
        """Note the end of a run."""
        with self._lock:
            self._runs_left -= 1
            if self._runs_left <= 0:
                self._encoded = {}


class MaskGeneration(MaskGenerationPipeline):  # type: ignore[misc]  # transformers has no types
    """Find the masks of a picture, or those of the objects that points and boxes show.

    Output of a picture: `{"masks", "scores"}` and what its parameters ask for, as of transformers. Output of points and
    boxes: the same two, each a list of lists: the masks and scores of each object. Masks are PNG files in base64.
    """

    _load_processor = True

    def __init__(self, **options: Any) -> None:
        """Raise InvalidModel for processors without the methods of SAM."""
        super().__init__(**options)
        if not hasattr(self.image_processor, "generate_crop_boxes") or self.image_processor.pad_size is None:
            raise InvalidModel(f"expected an image processor of SAM, got {type(self.image_processor).__name__}")

    def _sanitize_parameters(self, **given: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the parameters of `preprocess`, `_forward` and `postprocess`."""
        before, run, after = MaskGenerationPipeline._sanitize_parameters(self, **given)
        before |= {name: given[name] for name in (*PROMPTS, "multimask_output") if name in given}
        run |= {name: given[name] for name in ("multimask_output",) if name in given}
        return before, run, after

    def preprocess(
        self,
        image: Image.Image,
        points_per_batch: int = _USUAL_POINTS,
        crops_n_layers: int = 0,
        crop_overlap_ratio: float = 512 / 1500,
        points_per_crop: int = 32,
        crop_n_points_downscale_factor: int = 1,
        multimask_output: bool = True,
        **prompts: Any,
    ) -> Iterator[Row]:
        """Yield a row for each run. `prompts`: as `check_prompts` returns them; none for the grid of a picture."""
        if prompts:
            yield from self._prompted(image, MASKS_OF_A_POINT if multimask_output else 1, prompts)
            return
        grid = (crops_n_layers, crop_overlap_ratio, points_per_crop, crop_n_points_downscale_factor)
        boxes, points, crops, labels = self.image_processor.generate_crop_boxes(
            image, self.image_processor.size["longest_edge"], *grid
        )
        found, full_size = FoundMasks(), torch.tensor([image.height, image.width])
        for number, crop in enumerate(crops):
            prepared = self.image_processor(images=crop, return_tensors="pt")
            most = min(points_per_batch, self._most_points(crop.shape[-2:], MASKS_OF_A_POINT))
            own = {"input_points": points[:, :, number : number + 1], "input_labels": labels[:, :, number : number + 1]}
            for row in self._rows(prepared, own, most):
                yield {
                    **row,
                    "found": found,
                    "input_boxes": boxes[number : number + 1],
                    "full_image_size": full_size,
                    "is_last": False,
                }

    def _prompted(self, image: Image.Image, masks: int, prompts: dict[str, Any]) -> Iterator[Row]:
        """Yield the rows of points and boxes, some objects in each."""
        prepared = self.processor(images=image, return_tensors="pt", **prompts)
        own = {name: prepared.pop(name) for name in PROMPTS if name in prepared}
        # No row of a batch: its runs share the crop.
        size = torch.tensor([image.height, image.width])
        for row in self._rows(prepared, own, self._most_points((image.height, image.width), masks)):
            yield {**row, "full_image_size": size}

    def _rows(self, prepared: Any, prompts: dict[str, torch.Tensor], most: int) -> Iterator[Row]:
        """Yield rows of at most `most` objects of one crop. `prompts`: [1, objects, …] each."""
        pixels = prepared.pop("pixel_values").to(self.dtype)
        objects = next(iter(prompts.values())).shape[1]
        crop = EncodedCrop(pixels, -(-objects // most))
        for at in range(0, objects, most):
            yield {
                **{name: values[:, at : at + most] for name, values in prompts.items()},
                **prepared,
                "crop": crop,
                "shared_bytes": 0 if at else pixels.nbytes,
            }

    def _most_points(self, size: Sequence[int], masks: int) -> int:
        """Return the points of a run whose masks take little enough memory."""
        padded = self.image_processor.pad_size
        pixels = padded["height"] * padded["width"] + size[0] * size[1]
        most_bytes = _CPU_RUN_BYTES if self.device.type == "cpu" else _RUN_BYTES
        return int(max(1, most_bytes // (masks * pixels * _PIXEL_BYTES)))

    def _forward(
        self, model_inputs: Row, multimask_output: bool = True, mask_threshold: float = 0.0, **filters: Any
    ) -> dict[str, Any]:
        """Return the masks of one row: those of a grid that pass the filters, or all of objects."""
        crop: EncodedCrop = model_inputs.pop("crop")
        model_inputs.pop("shared_bytes")
        found: FoundMasks | None = model_inputs.pop("found", None)
        try:
            if found is not None and found.are_too_many:
                # The answer is an error already.
                return {"masks": [], "iou_scores": torch.zeros(0), "boxes": torch.zeros(0, 4), "found": found}
            model_inputs |= crop.encode(self.model)
            if found is None:
                return self._masks_of_objects(model_inputs, multimask_output, mask_threshold)
            outputs = super()._forward(model_inputs, mask_threshold=mask_threshold, **filters)
        finally:
            crop.end_run()
        masks = [RunLengths.of(mask) for mask in outputs["masks"]]
        found.add(masks)
        return {"masks": masks, "iou_scores": outputs["iou_scores"], "boxes": outputs["boxes"], "found": found}

    def _masks_of_objects(self, model_inputs: Row, multimask_output: bool, mask_threshold: float) -> dict[str, Any]:
        model_inputs.pop("full_image_size")
        sizes = [model_inputs.pop(name).tolist() for name in ("original_sizes", "reshaped_input_sizes")]
        outputs = self.model(**model_inputs, multimask_output=multimask_output)
        [masks] = self.image_processor.post_process_masks(outputs["pred_masks"], *sizes, mask_threshold=mask_threshold)
        return {"packed": PackedMasks.of(masks), "iou_scores": outputs["iou_scores"][0]}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        output_rle_mask: bool = False,
        output_bboxes_mask: bool = False,
        crops_nms_thresh: float = 0.7,
    ) -> dict[str, Any]:
        """Return the masks and scores of all runs of an image. Raises InvalidInput for too many."""
        scores = torch.cat([output["iou_scores"] for output in model_outputs])
        if "packed" in model_outputs[0]:
            pngs = [own for output in model_outputs for own in output["packed"].pngs()]
            return {"masks": pngs, "scores": scores}
        model_outputs[0]["found"].check()
        masks: list[RunLengths] = [mask for output in model_outputs for mask in output["masks"]]
        boxes = torch.cat([output["boxes"] for output in model_outputs])
        pixels = masks[0].height * masks[0].width if masks else 1
        best = drop_overlapping(boxes, scores, crops_nms_thresh, pixels)
        kept = [masks[number] for number in best.tolist()]
        answer: dict[str, Any] = {"masks": [mask.png() for mask in kept], "scores": scores[best]}
        if output_rle_mask:
            answer["rle_mask"] = [mask.as_mapping() for mask in kept]
        if output_bboxes_mask:
            answer["bounding_boxes"] = boxes[best]
        return answer
