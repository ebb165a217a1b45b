"""Define the contract of a framework: Registry, BatchModel and StepModel. The layers above know only these."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.core.settings.entries import OnnxModelEntry, TorchModelEntry
from frameworks.generation.sequences import SequenceRequest, StepResult, TokenMatcher
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import AdapterSpec, Constraint
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Batch, ModelSpec, Value

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor

ModelEntry = OnnxModelEntry | TorchModelEntry | CompositeModelEntry


class BatchModel(Protocol):
    """One instance of a loaded model that computes whole batches. Used by one thread at a time.

    The event loop replaces `spec` when requests have shown how their rows may share a run.
    """

    spec: ModelSpec

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of a text model; None for a tensor model."""
        ...

    @property
    def image_processor(self) -> "ImageProcessor | None":
        """The processor of a model that declares an ImageSpec; None for another model."""
        ...

    def infer(self, batch: Batch) -> dict[str, Value]:
        """Run the model; return output name → value. The result of a TokenBatch is one value named TEXT_OUTPUT.

        Raises InvalidInput where the batch does not match the graph, OutOfMemory where it does not fit, ModelFailed
        where the device failed.
        """
        ...

    def warm_up(self) -> None:
        """Run once with the declared shape, so that the first request does not pay for lazy initialisation.

        Raises InvalidModel where the model cannot run.
        """
        ...

    def on_idle(self) -> None:
        """Release resources that slow other models down. Called after a short time without work; work may follow."""
        ...

    def close(self) -> None:
        """Release weights and device memory. No other method is called afterwards."""
        ...


class StepModel(Protocol):
    """One instance of a loaded generating model; sequences join and end between its steps. Used by one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def tokenizer(self) -> GenerationTokenizer: ...

    @property
    def has_work(self) -> bool:
        """Whether a sequence is queued or running."""
        ...

    def constrain(self, constraint: Constraint) -> TokenMatcher:
        """Return the matcher of a constraint. Blocks; any thread may call it.

        Raises InvalidInput, with the field `constraint`, where the constraint is invalid; Overloaded where the
        constraints of running texts take all memory for them.
        """
        ...

    def adapter_bytes(self, folder: Path) -> int:
        """Check the files of an adapter against the model; return the bytes of its weights. Blocks; any thread.

        Raises InvalidModel where they do not fit the model, or are not served.
        """
        ...

    def load_adapter(self, name: str, folder: Path) -> AdapterSpec:
        """Load an adapter; no request may name it yet. Blocks; any thread. Raises InvalidModel, OutOfMemory."""
        ...

    def list_adapters(self, adapters: tuple[AdapterSpec, ...]) -> None:
        """Replace the adapters in the spec, which requests may name. Called by the owner of the spec's readers."""
        ...

    def unload_adapter(self, number: int) -> None:
        """Release an adapter that no sequence has. Blocks; any thread."""
        ...

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. Its prompt has at least one token and fits the context."""
        ...

    def abort(self, sequence_id: int) -> None:
        """End a sequence. Does nothing for an unknown id."""
        ...

    def step(self, held: Collection[str] = ()) -> StepResult:
        """Compute one step: the next token of each running sequence, and a part of the prompts of new sequences.

        `held`: names of tenants whose sequences are left out, unless the step would be empty.

        Without sequences, at the start and after the last abort, the step only reports stats. An error of one sequence
        is part of the result. Raises OutOfMemory or ModelFailed for all sequences; the caller then aborts them.
        """
        ...

    def warm_up(self) -> None:
        """As BatchModel.warm_up."""
        ...

    def on_idle(self) -> None:
        """As BatchModel.on_idle."""
        ...

    def close(self) -> None:
        """As BatchModel.close."""
        ...


LoadedModel = Sequence[BatchModel] | Sequence[StepModel]
"""The instances of one model, of one kind and with equal specs."""


class Registry(Protocol):
    """Load models of one framework from their files. All methods block; call them in a worker thread."""

    framework: str

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        """Estimate what the model at `path` needs of a device, from the headers of its files.

        Raises InvalidModel where the files are damaged.
        """
        ...

    def prepare(self, device: Device) -> None:
        """Allocate the memory that the framework itself keeps on a device, so that it is not counted as a model's.

        Called once for each device, before its first load.
        """
        ...

    def load(self, entry: ModelEntry, path: Path, device: Device) -> LoadedModel:
        """Load `entry.instances` instances of the model at `path` on `device`, without warm-up.

        Instances share weights and tokenizer where the framework allows it, and divide the CPUs evenly.

        Raises InvalidModel where the files are damaged, OutOfMemory where the model does not fit.
        """
        ...
