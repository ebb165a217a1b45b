"""The second implementation of BatchModel: small models that wait, double numbers, raise, or fail to load."""

import threading
from collections.abc import Callable
from pathlib import Path

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.images.processor import ImageProcessor
from frameworks.runtime import BatchModel, ModelEntry
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Batch, ModelSpec, TensorBatch, TensorType, Value, ValueSpec

Behaviour = Callable[[list[object]], None]


class DoublingModel:
    """Double each number of x. `behaviour` is called with x before each run; it may wait or raise."""

    tokenizer: TextTokenizer | None = None
    image_processor: ImageProcessor | None = None

    def __init__(self, behaviour: Behaviour | None = None, size_bytes: int = 0) -> None:
        numbers = TensorType("int64", (-1,))
        self.spec = ModelSpec(
            "fake", "tensor", (ValueSpec("x", numbers),), (ValueSpec("y", numbers),), "cpu", "int64", size_bytes
        )
        self.behaviour = behaviour
        self.executed: list[list[object]] = []
        self.threads: set[str] = set()
        self.warm_ups = 0
        self.idle_calls: list[str] = []
        """The thread of each call."""
        self.is_closed = False

    def infer(self, batch: Batch) -> dict[str, Value]:
        assert not self.is_closed, "called after close"
        assert isinstance(batch, TensorBatch)
        x = batch.inputs["x"]
        assert isinstance(x, list)
        self.executed.append(x)
        self.threads.add(threading.current_thread().name)
        if self.behaviour:
            self.behaviour(x)
        if "bad" in x:
            raise InvalidInput("x", "not a number")
        return {"y": [number * 2 for number in x]}

    def warm_up(self) -> None:
        self.warm_ups += 1

    def on_idle(self) -> None:
        self.idle_calls.append(threading.current_thread().name)

    def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True


class FakeRegistry:
    """Load DoublingModels and keep them in `made`. `on_load` is called before each load; it may wait or raise.

    `size_bytes`: what each model says that it takes.
    """

    framework = "fake"

    def __init__(
        self, behaviour: Behaviour | None = None, on_load: Callable[[], None] | None = None, size_bytes: int = 0
    ) -> None:
        self.behaviour = behaviour
        self.size_bytes = size_bytes
        self.on_load = on_load
        self.made: list[DoublingModel] = []
        self.prepared: list[str] = []

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        return ModelNeeds(self.size_bytes, self.size_bytes)

    def prepare(self, device: Device) -> None:
        self.prepared.append(device.id)

    def load(self, entry: ModelEntry, path: Path, device: Device) -> list[BatchModel]:
        if self.on_load:
            self.on_load()
        if path.name == "broken":
            raise InvalidModel(f"{path}: broken")
        instances = [DoublingModel(self.behaviour, self.size_bytes) for _ in range(entry.instances)]
        self.made += instances
        return [*instances]


class Gate:
    """A behaviour that holds each run until the gate is opened; `arrived` is set by the first run."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.arrived = threading.Event()

    def __call__(self, _: object = None) -> None:
        self.arrived.set()
        assert self._open.wait(60), "the gate was not opened"

    def open(self) -> None:
        self._open.set()


def numbers(*x: object) -> TensorBatch:
    """Return a batch for a DoublingModel."""
    return TensorBatch({"x": list(x)})
