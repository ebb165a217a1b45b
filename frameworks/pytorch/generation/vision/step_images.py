"""The images of a step: which rows have vectors instead of embeddings, and the positions of all rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from frameworks.generation.media import Positions, PromptMedia
from frameworks.pytorch.generation.vision.tower import ImageVectors, VisionTower
from frameworks.scheduling.steps.sequence import StepPart


@dataclass(frozen=True, slots=True)
class StepImages:
    """Of a step, or of a piece of it. `rows`: int64 [image tokens], ascending, the rows that read `vectors`
    [image tokens, hidden size]; `deep`: the same for each of the first layers, which are added to their outputs.
    `positions`: of RoPE, int64 [sections, rows]; None: as the indices of the tokens. `have_blocks`: some tokens see
    later ones.
    """

    rows: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    vectors: torch.Tensor | None
    deep: tuple[torch.Tensor, ...]
    positions: Positions | None
    have_blocks: bool = False

    @property
    def need_layers(self) -> bool:
        """Whether only the decoder's own layers compute the step."""
        return bool(self.deep) or self.have_blocks

    def replace_in(self, states: torch.Tensor) -> torch.Tensor:
        """Return embeddings [rows, hidden size] with the vectors of images in them."""
        if self.vectors is None:
            return states
        return states.index_copy(0, self._index(states), self.vectors.to(states.dtype))

    def add_deep(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a layer, [rows, hidden size], with the vectors that are added to them."""
        if layer >= len(self.deep):
            return states
        return states.index_add(0, self._index(states), self.deep[layer].to(states.dtype))

    def piece(self, start: int, end: int) -> "StepImages":
        """Return the images of the rows from `start` to `end`."""
        first, last = np.searchsorted(self.rows, (start, end)).tolist()
        positions = None if self.positions is None else self.positions[:, start:end]
        vectors = None if self.vectors is None or first == last else self.vectors[first:last]
        deep = () if vectors is None else tuple(each[first:last] for each in self.deep)
        return StepImages(self.rows[first:last] - start, vectors, deep, positions)

    def _index(self, states: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.rows).to(states.device, non_blocking=True)


def images_of(parts: Sequence[StepPart], tower: VisionTower) -> StepImages | None:
    """Return the images of a step; None where no sequence has any. Computes the vectors that are not cached."""
    if all([part.sequence.request.media is None for part in parts]):  # noqa: C419 - a list is faster in a short step
        return None
    rows: list[int] = []
    vectors: list[ImageVectors] = []
    first, have_blocks = 0, False
    for part in parts:
        media = part.sequence.request.media
        if media is not None and part.start < media.num_tokens:
            have_blocks = have_blocks or bool(media.blocks)
            scope = part.sequence.request.tenant.cache_scope
            for own, of_part in _parts_of_groups(media, part, tower, scope):
                rows += range(first + own.start, first + own.stop)
                vectors.append(of_part)
        first += part.num_tokens
    joined = torch.cat([each.vectors for each in vectors]) if vectors else None
    layers = max((len(each.deep) for each in vectors), default=0)
    deep = tuple(torch.cat([each.deep[layer] for each in vectors]) for layer in range(layers))
    return StepImages(np.array(rows, dtype=np.int64), joined, deep, _positions(parts), have_blocks)


def _parts_of_groups(
    media: PromptMedia, part: StepPart, tower: VisionTower, scope: str
) -> Iterator[tuple[range, ImageVectors]]:
    """Yield the rows of a part that an image has, counted from its first one, with their vectors; ascending."""
    start, stop = part.start, part.start + part.num_tokens
    found = []
    for group in media.groups:
        done = 0
        for begin, end in group.spans:
            low, high = max(begin, start), min(end, stop)
            if low < high:
                of_group = tower.vectors_of(group, scope)
                own = slice(done + low - begin, done + high - begin)
                of_part = ImageVectors(of_group.vectors[own], tuple(each[own] for each in of_group.deep))
                found.append((range(low - start, high - start), of_part))
            done += end - begin
    yield from sorted(found, key=lambda each: each[0].start)


def _positions(parts: Sequence[StepPart]) -> Positions | None:
    known = [part.sequence.request.media for part in parts]
    sections = next((len(each.positions) for each in known if each is not None and each.positions is not None), None)
    if sections is None:
        return None
    of_parts = []
    for part, media in zip(parts, known, strict=True):
        if media is not None and media.positions is not None:
            of_parts.append(media.positions_of(part.start, part.num_tokens))
        else:
            own = np.arange(part.start, part.start + part.num_tokens)
            of_parts.append(np.tile(own, (sections, 1)))
    return np.concatenate(of_parts, 1)
