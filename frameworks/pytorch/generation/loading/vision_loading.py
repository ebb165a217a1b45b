"""Load the vision part of a model that sees: processor, tower and the trial that both have to pass."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from frameworks.core.errors import InvalidModel
from frameworks.generation.types import VisionSpec
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.loading.cached_model import CachedModel
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.step.shape import NotPaged
from frameworks.pytorch.generation.vision.language import LanguagePart, sees
from frameworks.pytorch.generation.vision.tower import VisionTower

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
    """The vision part of a load."""

    prompts: "ImagePrompts"
    trial: "VisionTrial"


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
    bounds = VisionSpec(entry.max_images, entry.max_image_pixels)
    try:
        prompts = ImagePrompts(ImageProcessing(load.folder, whole), load.tokenizer, bounds)
        return Vision(prompts, VisionTrial(whole, prompts, max_tokens))
    except InvalidModel as error:
        raise InvalidModel(
            f"{load.folder}: vision: {error.message}; set vision = false to serve texts alone"
        ) from error


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
    # The vectors of the trial are no request's.
    tower.clear()


def see_by_caches(load: GeneratorLoad, vision: Vision, cached: CachedModel) -> None:
    """Compare the texts after images with `generate`. Raises InvalidModel, OutOfMemory."""
    trial = vision.trial
    vision.prompts.form = replace(vision.prompts.form, is_separate=False, sees_ahead=False, is_whole=True)
    try:
        ids, media = trial.prompt()
        cache = cached.start()
        with torch.inference_mode():
            rows = [cached.logits_of_images(ids, media.inputs, cache, 1)]
            rows += [
                cached.logits(trial.token_ids[index : index + 1], index, cache, 1)
                for index in range(len(ids), len(trial.token_ids))
            ]
        off = trial.off(torch.cat(rows).float().cpu())
    except Exception as error:
        trial.check_memory(error)
        raise InvalidModel(f"{load.folder}: vision: its images do not run: {error}; set vision = false") from error
    if not off <= trial.tolerance:
        raise InvalidModel(
            f"{load.folder}: vision: its logits after images are off by {off:.3g} times their spread; "
            "set vision = false to serve texts alone"
        )
