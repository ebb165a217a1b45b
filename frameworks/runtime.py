"""The contract below the scheduler: what a framework brings, so that everything above it need not know which it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from frameworks.devices import Device, ModelNeeds
from frameworks.settings import OnnxModelEntry, TorchModelEntry
from frameworks.text import TextTokenizer
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

    def close(self) -> None:
        """Lets go of weights and device memory. Nothing is called after it."""
        ...


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

    def load(self, entry: ModelEntry, path: Path, device: Device) -> Sequence[BatchModel]:
        """Reads the model at `path` and places `entry.instances` of it on `device`; not yet warmed up.

        They share their weights and their tokenizer where the framework lets them, and the CPUs: none uses more threads
        than leave as many to each of the others.

        Raises InvalidModel where the files are not what they claim, OutOfMemory where the model does not fit.
        """
        ...
