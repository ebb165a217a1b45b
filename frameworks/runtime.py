"""The contract below the scheduler: what a framework brings, so that everything above it need not know which it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from frameworks.devices import Device, ModelNeeds
from frameworks.generation.tokenizer import GenerationTokenizer
from frameworks.generation.types import Constraint, SequenceRequest, StepResult, TokenMatcher
from frameworks.settings import OnnxModelEntry, TorchModelEntry
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Batch, ModelSpec, Value

ModelEntry = OnnxModelEntry | TorchModelEntry


class BatchModel(Protocol):
    """One instance of a loaded model, which answers a whole batch at once. One thread uses it at a time."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of a text model; None for a model of tensors."""
        ...

    def infer(self, batch: Batch) -> dict[str, Value]:
        """Runs the model: output name → value. A TokenBatch is answered with one value named TEXT_OUTPUT.

        Raises InvalidInput where the batch does not suit the graph, OutOfMemory where it does not fit, ModelFailed
        where the device gave up.
        """
        ...

    def warm_up(self) -> None:
        """Runs once with the declared shape, so that the first caller does not pay for lazy initialisation.

        Raises InvalidModel where the model cannot run.
        """
        ...

    def on_idle(self) -> None:
        """Nothing has come for a moment: lets go of what would be in the way of other models. It may be used again."""
        ...

    def close(self) -> None:
        """Lets go of weights and device memory. Nothing is called after it."""
        ...


class StepModel(Protocol):
    """One instance of a loaded generating model: sequences join and leave between its steps. One thread uses it."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def tokenizer(self) -> GenerationTokenizer: ...

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        ...

    def constrain(self, constraint: Constraint) -> TokenMatcher:
        """The matcher of a constraint; blocks, and may be called by any thread. Raises InvalidInput, with the field
        `constraint`, where it cannot be read.
        """
        ...

    def add(self, request: SequenceRequest) -> None:
        """Takes a sequence into the line of those that wait. Its prompt has a token at least and fits the context."""
        ...

    def abort(self, sequence_id: int) -> None:
        """Lets a sequence go; harmless where it is gone already."""
        ...

    def step(self) -> StepResult:
        """Computes a step: of each sequence that runs its next token, of those that join a part of their prompts.

        Also called without a sequence, at first and when the last was let go: then it computes nothing, and says how
        it stands. What concerns one sequence alone fails that one. Raises OutOfMemory, ModelFailed: for all of them;
        they are aborted then.
        """
        ...

    def warm_up(self) -> None:
        """As BatchModel.warm_up."""
        ...

    def on_idle(self) -> None:
        """As BatchModel.rest."""
        ...

    def close(self) -> None:
        """As BatchModel.close."""
        ...


LoadedModel = Sequence[BatchModel] | Sequence[StepModel]
"""The instances of one model: all of one kind, with equal specs."""


class Registry(Protocol):
    """Makes models of one framework from their files. All calls block and belong in a worker thread."""

    framework: str

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        """What the model at `path` wants of a device, read from its files' heads.

        Raises InvalidModel where the files are not what they claim.
        """
        ...

    def prepare(self, device: Device) -> None:
        """Brings what the framework itself keeps on a device for ever: it is no model's, and not counted as the first
        one's. Called once for each device, before the first load there.
        """
        ...

    def load(self, entry: ModelEntry, path: Path, device: Device) -> LoadedModel:
        """Reads the model at `path` and places `entry.instances` of it on `device`; not yet warmed up.

        They share their weights and their tokenizer where the framework lets them, and the CPUs: none uses more threads
        than leave as many to each of the others.

        Raises InvalidModel where the files are not what they claim, OutOfMemory where the model does not fit.
        """
        ...
