"""Check a model's images and videos against transformers' `generate`: a prompt with them, and the tokens after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.hooks import RemovableHandle

from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Conversation, Message, MessageImage, Sampling
from frameworks.media.video import VideoSize
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.step.trial import MASKED
from frameworks.pytorch.generation.vision.processing import SampledVideo
from frameworks.pytorch.generation.vision.prompts import ImagePrompts, PromptForm
from frameworks.pytorch.generation.vision.tower import VisionTower
from frameworks.scheduling.steps.sequence import Sequence as TextSequence
from frameworks.scheduling.steps.sequence import StepPart
from frameworks.types import DEFAULT_PRIORITY

# Height and width; most processors enlarge them.
_SIZES = ((56, 84), (84, 56))
_FRAMES, _FPS = 4, 2.0
_NEW_TOKENS = 4
# Of the first file, in place of a hash; the next ones are below.
_IMAGE_KEY, _VIDEO_KEY = -2, -100
_TEXTS = ("A first one ", " and another ", " of them. Which are they?")
# Largest difference of vectors that were computed for one image and for several, relative to their spread.
_VECTOR_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}

# Largest change of a token's states by one that it does not see, relative to their spread.
_STATE_TOLERANCE = 1e-3
# Of models whose decoder has another form.
_UNKNOWN = (AttributeError, IndexError, KeyError, TypeError, ValueError)

Compute = Callable[[list[StepPart]], torch.Tensor]
"""Parts of a step → their logits."""


@dataclass(frozen=True, slots=True)
class ImageMask:
    """Which tokens see later ones. `sees_ahead`: those of an image, within it; None where that is unknown. `sees_text`:
    those of an image, the text after it.
    """

    sees_ahead: bool | None = None
    sees_text: bool = False


class VisionTrial:
    """The logits of `generate` after a prompt with two images or a video, computed before the model is changed."""

    def __init__(self, whole: Any, prompts: ImagePrompts, max_tokens: int, is_video: bool = False) -> None:
        """`max_tokens`: of a text. Raises InvalidModel where transformers does not generate, OutOfMemory."""
        self._prompts = prompts
        self._is_video = is_video
        self._device: torch.device = whole.device
        self._dtype: torch.dtype = whole.dtype
        try:
            for num_files in (1,) if is_video else range(len(_SIZES), 0, -1):
                text = self._text(num_files)
                inputs = prompts.processing.process(text, self._images(num_files), self._videos())
                if inputs["input_ids"].shape[1] + _NEW_TOKENS <= max_tokens:
                    break
            else:
                what = "a video" if is_video else "an image"
                raise InvalidModel(f"{what} takes more than the context of {max_tokens} tokens")
            self._text_of_trial, self._num_files = text, num_files
            with _first_states(whole) as states:
                self.token_ids, self._expected = self._generate(whole, inputs)
            self.mask = ImageMask()
            """Of the model's own attention."""
            with suppress(*_UNKNOWN):
                self.mask = self._find_mask(whole, inputs, states[0])
        except InvalidModel:
            raise
        except Exception as error:
            self.check_memory(error)
            raise InvalidModel(
                f"transformers does not generate of {'videos' if is_video else 'images'}: {type(error).__name__}: "
                f"{_first_line(error)}"
            ) from error

    def find_form(self, tower: VisionTower) -> None:
        """Set the form of the prompts to separate images where their vectors are the same as of all together."""
        prompts = self._prompts
        joint, separate = PromptForm(), PromptForm(is_separate=True)
        prompts.form = joint
        ids, media = self.prompt()
        of_all = tower.compute(media.groups[0].inputs).vectors
        prompts.form = separate
        try:
            own_ids, own = self.prompt()
            vectors = torch.cat([tower.compute(group.inputs).vectors for group in own.groups])
        except Exception as error:  # noqa: BLE001 - a processor that does not know images by themselves
            self.check_memory(error)
            prompts.form = joint
            return
        same = own_ids == ids and vectors.shape == of_all.shape and _same_positions(own, media)
        if not (same and _off(vectors, of_all) <= _VECTOR_TOLERANCE[self._dtype]):
            prompts.form = joint

    def prompt(self) -> tuple[list[int], PromptMedia]:
        """Return the token ids of the trial's prompt and its files, in the form of the prompts."""
        first = _VIDEO_KEY if self._is_video else _IMAGE_KEY
        keys = [first - number for number in range(self._num_files)]
        return self._prompts.of_text(self._text_of_trial, self._images(self._num_files), keys, self._videos())

    def off_in_parts(self, runner: PagedRunner, num_blocks: int) -> float:
        """Return the error of the logits by paged attention, relative to their spread: the largest of the ways in
        which the runner computes steps. Sets `sees_ahead` of the form.

        `num_blocks`: that are free. Raises what the decoder raises.
        """
        compute = runner.compute_by_layers
        # The form is that of the images.
        off = self._off_of(compute, num_blocks) if self._is_video else self._off_by(compute, num_blocks)
        if off <= self.tolerance and runner.step is not None:
            off = max(off, self._off_of(runner.compute, num_blocks))
        return off

    def _off_by(self, compute: Compute, num_blocks: int) -> float:
        prompts = self._prompts
        found: dict[PromptForm, float] = {}
        for sees_ahead in (False, True) if self.mask.sees_ahead is None else (self.mask.sees_ahead,):
            prompts.form = replace(prompts.form, sees_ahead=sees_ahead)
            found[prompts.form] = self._off_of(compute, num_blocks)
            if found[prompts.form] <= self.tolerance:
                break
        prompts.form = min(found, key=lambda form: found[form])
        return found[prompts.form]

    def _off_of(self, compute: Compute, num_blocks: int) -> float:
        """Return the error of the logits in the form of the prompts."""
        ids, media = self.prompt()
        # Within the first image, unless its tokens need each other.
        first, end = media.groups[0].spans[0]
        cut = end if media.blocks else (first + end + 1) // 2
        ends = [cut, len(ids), *range(len(ids) + 1, len(self.token_ids) + 1)]
        rows, start = [], 0
        for stop in ends:
            rows.append(self._computed(compute, media, start, stop, num_blocks))
            start = stop
        return self.off(torch.cat(rows[1:]))

    def off(self, logits: torch.Tensor) -> float:
        """Return the error of logits [new tokens, vocabulary], relative to the spread of the expected ones."""
        return _off(logits, self._expected[: len(logits)])

    @property
    def tolerance(self) -> float:
        """Largest error of a correct model, relative to the spread of the logits."""
        return {torch.float32: 2e-3, torch.float16: 0.05, torch.bfloat16: 0.25}[self._dtype]

    def _computed(self, compute: Compute, media: PromptMedia, start: int, stop: int, num_blocks: int) -> torch.Tensor:
        request = SequenceRequest(
            0, tuple(self.token_ids[:stop]), 1, Sampling(), priority=DEFAULT_PRIORITY, media=media
        )
        sequence = TextSequence(request, 0.0)
        sequence.blocks = list(range(num_blocks))
        with torch.inference_mode():
            return compute([StepPart(sequence, start, stop - start)]).float().cpu().clone()

    def _generate(self, whole: Any, inputs: dict[str, Any]) -> tuple[list[int], torch.Tensor]:
        """Return the tokens of the prompt and of the text, and the logits before each of the latter."""
        with torch.inference_mode():
            output = whole.generate(
                **self._on_device(inputs),
                max_new_tokens=_NEW_TOKENS,
                min_new_tokens=_NEW_TOKENS,
                do_sample=False,
                num_beams=1,
                output_logits=True,
                return_dict_in_generate=True,
            )
        ids = [int(each) for each in output.sequences[0]]
        prompt_ids, _ = self.prompt()
        # The last token is not read.
        return [*prompt_ids, *ids[len(prompt_ids) : -1]], torch.cat(output.logits).float().cpu()

    def _find_mask(self, whole: Any, inputs: dict[str, Any], states: torch.Tensor) -> ImageMask:
        """Return which tokens see later ones: those whose states another vector of a later token changes. The logits
        of narrow or quantized weights do not tell. `states`: of the prompt, [tokens, hidden size].
        """
        ids, image_id = inputs["input_ids"][0].tolist(), self._prompts.processing.image_id
        if self._is_video or image_id not in ids or len(states) != len(ids):
            return ImageMask()
        first = ids.index(image_id)
        last = first + sum(1 for _ in takewhile(lambda token_id: token_id == image_id, ids[first:])) - 1
        if last == first:
            return ImageMask()
        if not self._is_seen(whole, inputs, states, last)[first:last].any():
            return ImageMask(sees_ahead=False)
        return ImageMask(True, bool(self._is_seen(whole, inputs, states, len(ids) - 1)[first:last].any()))

    def _is_seen(self, whole: Any, inputs: dict[str, Any], states: torch.Tensor, position: int) -> torch.Tensor:
        """Return whether each token sees the one at a position, bool [tokens]."""

        def change(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            vectors = options["inputs_embeds"].clone()
            vectors[:, position] = -vectors[:, position] + vectors.std()
            return arguments, options | {"inputs_embeds": vectors}

        with (
            _first_states(whole) as changed,
            _removing(whole.get_decoder().register_forward_pre_hook(change, with_kwargs=True)),
            torch.inference_mode(),
        ):
            whole.generate(**self._on_device(inputs), max_new_tokens=1, do_sample=False, num_beams=1)
        return (changed[0] - states).square().mean(1).sqrt() > _STATE_TOLERANCE * states.std()

    def _on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.to(self._device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
        }

    def _text(self, num_files: int) -> str:
        texts = (*_TEXTS[:num_files], _TEXTS[-1])
        content = "".join(texts)
        ends = np.cumsum([len(each) for each in texts[:-1]]).tolist()
        files = tuple(MessageImage(b"", end, "messages", is_video=self._is_video) for end in ends)
        if self._prompts.has_template:
            return self._prompts.render(Conversation((Message("user", content, images=files),)))
        processing = self._prompts.processing
        return (processing.video_placeholder if self._is_video else processing.placeholder).join(texts)

    def _images(self, num_files: int) -> list[Image.Image]:
        sizes = () if self._is_video else _SIZES[:num_files]
        random = np.random.default_rng(0)
        return [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]

    def _videos(self) -> list[SampledVideo]:
        if not self._is_video:
            return []
        height, width = _SIZES[0]
        frames = np.random.default_rng(0).integers(0, 256, (_FRAMES, height, width, 3), dtype=np.uint8)
        return [SampledVideo(frames, tuple(range(_FRAMES)), VideoSize(_FRAMES, _FPS, height, width))]

    def check_memory(self, error: Exception) -> None:
        """Raise OutOfMemory if memory is the cause."""
        ours = map_device_error(error, "the images of a trial", self._device)
        if isinstance(ours, OutOfMemory):
            raise ours from error


@contextmanager
def _first_states(whole: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the states of the first pass of the decoder within a model, float32 [tokens, hidden size]."""
    states: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        with suppress(*_UNKNOWN):
            if not states:
                states.append(output[0][0].float())

    with ExitStack() as hooks:
        with suppress(*_UNKNOWN):
            hooks.enter_context(_removing(whole.get_decoder().register_forward_hook(keep)))
        yield states


@contextmanager
def _removing(hook: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()


def _off(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the error of values, relative to the spread of the expected ones, but for masked logits."""
    wide, wanted = values.float(), expected.float()
    is_free = wanted.abs() < MASKED
    wide, wanted = wide[is_free], wanted[is_free]
    return float((wide - wanted).square().mean().sqrt()) / max(float(wanted.std()), 1e-6)


def _same_positions(one: PromptMedia, other: PromptMedia) -> bool:
    if one.positions is None or other.positions is None:
        return one.positions is other.positions
    return np.array_equal(one.positions, other.positions)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
