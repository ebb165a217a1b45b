"""Settings of a model that runs other models of the server."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from frameworks.core.settings.entries import ModelEntry


class CompositeModelEntry(ModelEntry, ABC):
    """A model that runs other models of the server; an extension has the class and the engine of each framework.

    It has no files and one version, and is loaded in each process that answers requests. Its rows are queued at the
    models that it runs.
    """

    framework: ClassVar[str]
    """Where other models have `onnx` or `pytorch`."""

    @property
    @abstractmethod
    def models(self) -> frozenset[str]:
        """The names or aliases of the models that it runs."""

    @property
    @abstractmethod
    def collections(self) -> frozenset[str]:
        """The names of the collections that it searches."""

    @property
    @abstractmethod
    def definition(self) -> Mapping[str, object]:
        """The computation, as JSON values."""
