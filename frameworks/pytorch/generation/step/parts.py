"""The components of a generating model, and a step that they compute: its logits, or the tokens sampled from them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from frameworks.core.errors import RoundhouseError
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.runner import StepRunner
from frameworks.pytorch.generation.sampling.beam_search import BeamSearcher
from frameworks.pytorch.generation.sampling.device_sampler import DeviceSampler, UnreadTokens
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from frameworks.pytorch.generation.sampling.top_k import TieCheck
from frameworks.pytorch.generation.speculation.speculating import Speculation
from frameworks.pytorch.generation.vision.tower import VisionTower
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import StepPlan
from frameworks.tasks.types import TaskPipeline

if TYPE_CHECKING:
    # transformers' processors take long to import.
    from frameworks.pytorch.generation.vision.prompts import ImagePrompts


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The components of a generating model. `speculation`: None where no tokens are proposed. `device_sampler`: None
    where the host reads each step before the next. `image_prompts`: None where it reads no images. `tower`:
    None where the runner computes them in its own pass. `pipeline`: of a model of speech.
    """

    runner: StepRunner
    scheduler: StepScheduler
    sampler: Sampler
    masks: TokenMasks
    tokenizer: GenerationTokenizer
    adapters: AdapterSet | None
    speculation: Speculation | None = None
    device_sampler: DeviceSampler | None = None
    image_prompts: "ImagePrompts | None" = None
    tower: VisionTower | None = None
    pipeline: TaskPipeline | None = None


class EndsWithModel(Protocol):
    """A helper of a model, such as a thread or a process."""

    def close(self) -> None:
        """End it, and wait for its end."""
        ...


@dataclass(slots=True)
class StepInFlight:
    """A step that was given to the device. `states`: of the rows that are sampled. `unread`: their tokens where the
    device samples them; else their `logits`. `searches`: the beam searches of the step, by sequence id: None where one
    goes on, or its error. Their rows are not sampled.
    """

    plan: StepPlan
    states: list[SamplingState]
    started_s: float
    unread: UnreadTokens | None = None
    logits: torch.Tensor | None = None
    ties: TieCheck | None = None
    searches: dict[int, BeamSearcher | RoundhouseError | None] = field(default_factory=dict)

    def read(self, sampler: Sampler) -> list[Sampled | RoundhouseError]:
        """Return the token of each row, or its error. Waits for the device."""
        if self.unread is not None:
            return self.unread.read()
        assert self.logits is not None
        return sampler.sample(self.logits, self.states, self.ties) if self.states else []
