"""The pictures of ``tiny-vision``, and the first stage of its training: the vision tower alone.

Three linear layers on top of the tower say shape and colour, and draw the shape by itself. The drawing teaches the
tower what belongs to the shape, long before it can name it. Shape and colour are said of the mean of the vectors, and
of each vector, so that the language model finds them in any. The layers are dropped after this stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from tools.training.shape_images import COLOURS, SHAPES, SIDE, draw_named

SHAPE_NAMES, COLOUR_NAMES = tuple(SHAPES), tuple(COLOURS)
MEAN, STD = 0.5, 0.25
BATCH_SIZE = 64
MATRIX_LEARNING_RATE, LEARNING_RATE = 1e-2, 3e-3
WARM_UP_SHARE, CONSTANT_SHARE, LAST_LEARNING_RATE_SHARE = 0.05, 0.4, 0.01
MASK_WEIGHT, EACH_WEIGHT = 4.0, 0.5
"""Weights of the losses of the drawing and of the names by each vector, beside that of the names by their mean."""
REPORT_EVERY_STEPS = 100


@dataclass(frozen=True, slots=True)
class Pictures:
    """`pixels`: uint8 [n, 64, 64, 3]; `masks`: uint8 [n, 32, 32], the shapes alone; `shapes` and `colours`: int64 [n],
    indices of the names.
    """

    pixels: "np.ndarray[Any, np.dtype[np.uint8]]"
    masks: "np.ndarray[Any, np.dtype[np.uint8]]"
    shapes: "np.ndarray[Any, np.dtype[np.int64]]"
    colours: "np.ndarray[Any, np.dtype[np.int64]]"

    def __len__(self) -> int:
        return len(self.shapes)

    def name(self, index: int) -> tuple[str, str]:
        """Return (colour, shape) of a picture."""
        return COLOUR_NAMES[self.colours[index]], SHAPE_NAMES[self.shapes[index]]


def pictures_of(count: int, seed: int) -> Pictures:
    """Return drawn pictures, as many of each pair of shape and colour as the count allows."""
    random = Random(seed)
    pairs = np.arange(count) % (len(SHAPE_NAMES) * len(COLOUR_NAMES))
    shapes, colours = pairs % len(SHAPE_NAMES), pairs // len(SHAPE_NAMES)
    pixels = np.empty((count, SIDE, SIDE, 3), np.uint8)
    masks = np.empty((count, SIDE // 2, SIDE // 2), np.uint8)
    for index in range(count):
        drawn = draw_named(SHAPE_NAMES[shapes[index]], COLOUR_NAMES[colours[index]], random)
        pixels[index], masks[index] = (np.asarray(each) for each in drawn)
    return Pictures(pixels, masks, shapes, colours)


def to_input(pixels: Any) -> torch.Tensor:
    """Return the input of the tower, as the processor of the folder makes it: float32 [n, 3, 64, 64]."""
    channels_first = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return channels_first.float().div_(255).sub_(MEAN).div_(STD)


def turned(pixels: Any, generator: Any) -> Any:
    """Return images or masks [n, height, width, …], mirrored and transposed at random, all in the same way."""
    vertical, horizontal = generator.choice((1, -1), 2)
    pixels = pixels[:, ::vertical, ::horizontal]
    return pixels.swapaxes(1, 2) if generator.random() < 0.5 else pixels


def optimizers_of(model: nn.Module, matrix_rate: float, rate: float) -> list[Any]:
    """Return Muon for the matrices of the layers, and AdamW for the other weights."""
    matrices: list[Any] = []
    others: list[Any] = []
    for name, weight in model.named_parameters():
        is_matrix = weight.ndim == 2 and name.endswith(".weight") and "embed" not in name and "head" not in name
        (matrices if is_matrix else others).append(weight)
    return [
        torch.optim.Muon(matrices, matrix_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_share_at(step: int, steps: int) -> float:
    """Return the share of the maximum learning rate: linear warm-up, constant, linear decay."""
    share = (step + 1) / steps
    decay = (1 - share) / (1 - CONSTANT_SHARE) * (1 - LAST_LEARNING_RATE_SHARE) + LAST_LEARNING_RATE_SHARE
    return min(1.0, share / WARM_UP_SHARE, decay)


def train_by(model: nn.Module, optimizers: list[Any], losses: Iterator[Any], steps: int) -> None:
    """Take the steps, each on one loss, and print the progress. All optimisers follow the same schedule."""
    schedules = [torch.optim.lr_scheduler.LambdaLR(x, lambda step: rate_share_at(step, steps)) for x in optimizers]
    recent: list[float] = []
    for step, loss in zip(range(1, steps + 1), losses, strict=False):
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        recent.append(loss.item())
        if step % REPORT_EVERY_STEPS == 0 or step == steps:
            print(f"step {step} of {steps}: loss {np.mean(recent):.3f}", flush=True)
            recent.clear()


def train_tower(tower: Any, pictures: Pictures, held_out: Pictures, steps: int, seed: int) -> None:
    """Train a vision tower of transformers by itself, and print how many held-out pictures it names."""
    torch.manual_seed(seed)
    model = _Taught(tower)
    tower.train()
    train_by(model, optimizers_of(model, MATRIX_LEARNING_RATE, LEARNING_RATE), _losses(model, pictures, seed), steps)
    tower.eval()
    with torch.inference_mode():
        mean = tower(to_input(held_out.pixels)).last_hidden_state.mean(1)
        shapes, colours = model.shape_head(mean).argmax(1).numpy(), model.colour_head(mean).argmax(1).numpy()
    named = ((shapes == held_out.shapes) & (colours == held_out.colours)).mean()
    print(f"the tower alone names {named:.4f} of the held-out pictures", flush=True)


class _Taught(nn.Module):
    """A tower with linear layers on top. Each vector of the tower draws its part of the mask."""

    def __init__(self, tower: Any) -> None:
        super().__init__()
        self.tower = tower
        self.part = SIDE // 2 * tower.config.patch_size * 2 ** (tower.config.num_layers - 1) // SIDE
        size = tower.config.hidden_size
        self.shape_head = nn.Linear(size, len(SHAPE_NAMES))
        self.colour_head = nn.Linear(size, len(COLOUR_NAMES))
        self.mask_head = nn.Linear(size, self.part**2)

    def loss(self, pixels: torch.Tensor, masks: torch.Tensor, shapes: torch.Tensor, colours: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            vectors = self.tower(pixels).last_hidden_state
        vectors = vectors.float()
        mean = vectors.mean(1)
        rows, part = masks.shape[1] // self.part, self.part
        parts = masks.float().div(255).view(-1, rows, part, rows, part).transpose(2, 3).reshape(-1, rows**2, part**2)
        named = self._naming_loss(mean, shapes, colours)
        count = vectors.shape[1]
        each = self._naming_loss(
            vectors.flatten(0, 1), shapes.repeat_interleave(count), colours.repeat_interleave(count)
        )
        drawn = nn.functional.binary_cross_entropy_with_logits(self.mask_head(vectors), parts)
        return named + EACH_WEIGHT * each + MASK_WEIGHT * drawn

    def _naming_loss(self, vectors: torch.Tensor, shapes: torch.Tensor, colours: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(self.shape_head(vectors), shapes)
        return loss + nn.functional.cross_entropy(self.colour_head(vectors), colours)


def _losses(model: _Taught, pictures: Pictures, seed: int) -> Iterator[Any]:
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(pictures))
        for first in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            rows = order[first : first + BATCH_SIZE]
            state = generator.bit_generator.state
            pixels = turned(pictures.pixels[rows], generator)
            generator.bit_generator.state = state
            masks = turned(pictures.masks[rows], generator)
            labels = (torch.from_numpy(each[rows]) for each in (pictures.shapes, pictures.colours))
            yield model.loss(to_input(pixels), torch.from_numpy(np.ascontiguousarray(masks)), *labels)
