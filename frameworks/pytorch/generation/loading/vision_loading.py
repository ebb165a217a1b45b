"""Load the vision part of a model that sees: processor, tower and the trial that both have to pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

import torch

from frameworks.core.errors import InvalidModel
from frameworks.generation.types import VisionSpec
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.loading.cached_model import CachedModel
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.step.shape import NotPaged
from frameworks.pytorch.generation.vision.language import LanguagePart, pack_vision, sees
from frameworks.pytorch.generation.vision.tower import RememberedFeatures, VisionTower
from frameworks.pytorch.generation.weights.packed.building import make_fast
from frameworks.pytorch.generation.weights.packed.modules import PackedModule

if TYPE_CHECKING:
    from frameworks.pytorch.generation.loading.vision_trial import VisionTrial
    from frameworks.pytorch.generation.vision.prompts import ImagePrompts

# Largest error of the logits after images with quantized weights, relative to their spread.
_QUANTIZED_TOLERANCE = {"int8": 0.5, "int4": 0.9}


def language_part(model: Any) -> Any:
    """Return the language model within a model that sees; any other model itself. Raises NotPaged."""
    if not sees(model):
        return model
    try:
        return LanguagePart(model)
    except (AttributeError, TypeError, ValueError, StopIteration) as error:
        raise NotPaged(f"transformers does not tell its language model: {error}") from error


def drop_vision(part: LanguagePart) -> None:
    """Release the weights outside the language model."""
    kept = set(part.modules())
    for _, parent in list(part.whole.named_modules()):
        for name, module in list(parent.named_children()):
            if module not in kept and kept.isdisjoint(module.modules()):
                setattr(parent, name, torch.nn.Identity())


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision part of a load. `video_trial`: None where it reads no videos. `features`: of the trials."""

    prompts: "ImagePrompts"
    features: RememberedFeatures
    trial: "VisionTrial"
    video_trial: "VisionTrial | None" = None

    def make_fast(self, modules: Sequence[PackedModule]) -> int:
        """Compute with our layers of the packed weights of the vision part; return about how many bytes they take."""
        if modules:
            self.features.forget()
        return make_fast(modules)

    def activation_bytes(self, max_tokens: int) -> int:
        """Return the bytes that the tower takes for the largest files that it computes together, as measured by the
        trials. `max_tokens`: of a text, whose prompt has all tokens of the files.
        """
        bounds, form, count = self.prompts.bounds, self.prompts.form, self.prompts.processing.num_tokens
        side = isqrt(bounds.max_image_pixels)
        image_tokens = count([(side, side)]) or max_tokens
        num_tokens = image_tokens if form.is_separate else image_tokens * bounds.max_images
        if bounds.no_videos_because is None:
            # A video is computed at once.
            num_tokens = max_tokens
        return ceil(self.features.bytes_per_vector * min(num_tokens, max_tokens))

    def refuse_videos(self, reason: str) -> None:
        """Refuse the videos of requests."""
        self.prompts.bounds = replace(self.prompts.bounds, no_videos_because=reason)


def load_vision(load: GeneratorLoad, whole: Any, max_tokens: int) -> Vision:
    """Return the vision part of a model, before it is changed. `max_tokens`: of a text. Raises InvalidModel,
    OutOfMemory.
    """
    # Models of texts need none of transformers' processors.
    from frameworks.pytorch.generation.loading.vision_trial import VisionTrial
    from frameworks.pytorch.generation.vision.processing import ImageProcessing
    from frameworks.pytorch.generation.vision.prompts import ImagePrompts

    assert load.tokenizer is not None
    entry = load.entry
    bounds = VisionSpec(entry.max_images, entry.max_image_pixels, entry.max_video_frames, entry.max_video_seconds)
    try:
        pack_vision(whole, entry.kernels)
        prompts = ImagePrompts(ImageProcessing(load.folder, whole), load.tokenizer, bounds)
        vision = Vision(prompts, RememberedFeatures(whole), VisionTrial(whole, prompts, max_tokens))
    except InvalidModel as error:
        raise InvalidModel(
            f"{load.folder}: vision: {error.message}; set vision = false to serve texts alone"
        ) from error
    if prompts.bounds.no_videos_because is not None:
        return vision
    try:
        return replace(vision, video_trial=VisionTrial(whole, prompts, max_tokens, is_video=True))
    except InvalidModel as error:
        vision.refuse_videos(error.message)
        return vision


def see_by_blocks(
    load: GeneratorLoad, vision: Vision, whole: Any, runner: PagedRunner, packed_tolerance: float
) -> None:
    """Let a runner read images, and compare it with `generate`. Raises NotPaged, OutOfMemory.

    `packed_tolerance`: largest error of the logits, relative to their spread, where the files pack the weights.
    """
    if vision.prompts.processing.image_id is None:
        raise NotPaged("its config.json names no image token")
    if vision.trial.mask.sees_text:
        raise NotPaged("its images see the text after them")
    try:
        tower = VisionTower(whole)
        vision.trial.find_form(tower)
        runner.tower = tower
        off = vision.trial.off_in_parts(runner, runner.cache.blocks)
    except Exception as error:
        vision.trial.check_memory(error)
        raise NotPaged(f"its images do not run by paged attention: {error}") from error
    tolerance = packed_tolerance if load.bits is None else _QUANTIZED_TOLERANCE[load.bits]
    if not off <= max(vision.trial.tolerance, tolerance):
        raise NotPaged(f"by paged attention its logits after images are off by {off:.3g} times their spread")
    if vision.video_trial is not None:
        videos = vision.video_trial
        _check_videos(vision, videos, max(videos.tolerance, tolerance), partial(_off_in_parts, videos, runner))
    # The vectors of the trial are no request's.
    tower.clear()
    vision.features.end()


def _off_in_parts(trial: "VisionTrial", runner: PagedRunner) -> float:
    return trial.off_in_parts(runner, runner.cache.blocks)


def _check_videos(vision: Vision, trial: "VisionTrial", tolerance: float, measure: Callable[[], float]) -> None:
    """Refuse videos where the logits after one differ. `measure`: their error. Raises OutOfMemory."""
    try:
        off = measure()
    except Exception as error:  # noqa: BLE001 - the images run
        trial.check_memory(error)
        vision.refuse_videos(f"they do not run: {error}")
        return
    if not off <= tolerance:
        vision.refuse_videos(f"the logits after a video are off by {off:.3g} times their spread")


def see_by_caches(load: GeneratorLoad, vision: Vision, cached: CachedModel) -> None:
    """Compare the texts after images with `generate`. Raises InvalidModel, OutOfMemory."""
    trial = vision.trial
    vision.prompts.form = replace(vision.prompts.form, is_separate=False, sees_ahead=False, is_whole=True)
    try:
        off = _off_by_caches(trial, cached)
    except Exception as error:
        trial.check_memory(error)
        raise InvalidModel(f"{load.folder}: vision: its images do not run: {error}; set vision = false") from error
    if not off <= trial.tolerance:
        raise InvalidModel(
            f"{load.folder}: vision: its logits after images are off by {off:.3g} times their spread; "
            "set vision = false to serve texts alone"
        )
    if vision.video_trial is not None:
        videos = vision.video_trial
        _check_videos(vision, videos, videos.tolerance, partial(_off_by_caches, videos, cached))
    vision.features.end()


def _off_by_caches(trial: "VisionTrial", cached: CachedModel) -> float:
    ids, media = trial.prompt()
    cache = cached.start()
    with torch.inference_mode():
        rows = [cached.logits_of_images(ids, media.inputs, cache, 1)]
        rows += [
            cached.logits(trial.token_ids[index : index + 1], index, cache, 1)
            for index in range(len(ids), len(trial.token_ids))
        ]
    return trial.off(torch.cat(rows).float().cpu())
