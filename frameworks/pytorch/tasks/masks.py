"""Hold many masks of an image in little memory, drop those that overlap, and write them as PNG."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frameworks.core.errors import InvalidInput
from frameworks.pytorch.tasks.outputs import as_json
from frameworks.tasks.mask_prompts import MAX_CANDIDATES, MAX_MASK_PIXELS, MAX_MASKS

MAX_RUNS = 1 << 25
"""Run lengths of all masks of an image, four bytes each."""


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask by the lengths of its runs in column order, the first of pixels outside. `counts`: uint32 [runs]."""

    height: int
    width: int
    counts: NDArray[np.uint32]

    @classmethod
    def of(cls, mask: Mapping[str, Any]) -> "RunLengths":
        """Return the mask that transformers describes as `{"size": [height, width], "counts": […]}`."""
        height, width = mask["size"]
        return cls(height, width, np.array(mask["counts"], np.uint32))

    def as_mapping(self) -> dict[str, Any]:
        """Return the mask as transformers describes it."""
        return {"size": [self.height, self.width], "counts": self.counts.tolist()}

    def png(self) -> str:
        """Return the mask as a PNG file in base64."""
        inside = np.zeros(len(self.counts), bool)
        inside[1::2] = True
        return str(as_json(np.repeat(inside, self.counts).reshape(self.width, self.height).T))


@dataclass(frozen=True, slots=True)
class PackedMasks:
    """Masks of objects, eight pixels to a byte. `bits`: uint8 [objects, masks, bytes]."""

    bits: NDArray[np.uint8]
    height: int
    width: int

    @classmethod
    def of(cls, masks: torch.Tensor) -> "PackedMasks":
        """`masks`: bool [objects, masks, height, width]."""
        return cls(np.packbits(masks.flatten(2).cpu().numpy(), axis=-1), *masks.shape[2:])

    def pngs(self) -> list[list[str]]:
        """Return the masks of each object as PNG files in base64."""
        return [[self._png(bits) for bits in own] for own in self.bits]

    def _png(self, bits: NDArray[np.uint8]) -> str:
        pixels = np.unpackbits(bits, count=self.height * self.width).astype(bool)
        return str(as_json(pixels.reshape(self.height, self.width)))


class FoundMasks:
    """Count the masks of an image and their run lengths, for all of its runs. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks = self._runs = 0

    def add(self, masks: Sequence[RunLengths]) -> None:
        """Count the masks of one run."""
        with self._lock:
            self._masks += len(masks)
            self._runs += sum(len(mask.counts) for mask in masks)

    @property
    def are_too_many(self) -> bool:
        """Whether the image has more masks than are compared."""
        return self._masks > MAX_CANDIDATES or self._runs > MAX_RUNS

    def check(self) -> None:
        """Raise InvalidInput where the image has more masks than are compared."""
        if self.are_too_many:
            raise _too_many(f"{MAX_CANDIDATES} masks of {MAX_RUNS} runs before those that overlap are dropped", "more")


def drop_overlapping(boxes: torch.Tensor, scores: torch.Tensor, threshold: float, pixels: int) -> torch.Tensor:
    """Return the numbers of the masks that stay, the best first: as `nms` of torchvision, which is not needed here.

    `boxes`: [masks, 4]: left, top, right, bottom. `scores`: [masks]. `threshold`: a mask is dropped whose box has a
    larger share in common with that of a better one. `pixels`: of one mask. Raises InvalidInput for too many.
    """
    left, top, right, bottom = boxes.float().numpy().T
    areas = (right - left) * (bottom - top)
    most = min(MAX_MASKS, MAX_MASK_PIXELS // pixels)
    left_over = np.argsort(-scores.float().numpy(), kind="stable")
    kept: list[int] = []
    while left_over.size:
        if len(kept) == most:
            raise _too_many(f"{most} masks of an image of this size", "more")
        best, rest = int(left_over[0]), left_over[1:]
        kept.append(best)
        width = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        height = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        common = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(invalid="ignore"):  # two empty boxes have no share, and both stay
            share = common / (areas[best] + areas[rest] - common)
        left_over = rest[~(share.astype(np.float64) > threshold)]
    return torch.tensor(kept, dtype=torch.int64)


def _too_many(most: str, got: str) -> InvalidInput:
    return InvalidInput(
        "parameters.pred_iou_thresh",
        f"expected at most {most}, got {got}; raise it or stability_score_thresh, or lower crops_nms_thresh",
    )
