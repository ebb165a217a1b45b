"""Define the contract of a connection between an engine and the process or replica that runs its requests."""

from typing import NamedTuple, Protocol, runtime_checkable

from frameworks.engine.process.wire.messages import Loaded, ToEngine
from frameworks.types import Array, ModelSpec


class Loss(NamedTuple):
    """Why a process is lost. `label`: for metrics, such as `sigsegv`, `hang` or `protocol`. `message`: for people.

    `is_announced`: it was about to stop before, so that no request has caused its end.
    """

    label: str
    message: str
    is_announced: bool = False


class RemoteModel:
    """Implement Described: the spec that the process reported."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec


class Link(Protocol):
    """One running process with a loaded model. Owned by the event loop."""

    def send(self, message: ToEngine) -> None:
        """Send a message at the end of this round of the loop. Does nothing where the process is lost.

        Raises TypeError for a request that cannot be sent.
        """
        ...

    def lease_body(self, nbytes: int) -> Array | None:
        """As Engine.lease_body."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the process reads too slowly, so that requests should be refused."""
        ...

    @property
    def num_leases(self) -> int:
        """Number of tensors in shared memory that either process has not read to the end."""
        ...

    def kill(self, label: str, reason: str) -> None:
        """End the process at once; the engine gets its loss, with this label."""
        ...

    def abandon(self, reason: str) -> None:
        """End the requests of this client at once; its owner ends the process too. Call it instead of `ended`."""
        ...

    async def ended(self, within_s: float) -> None:
        """Wait for the end of a process that was sent Close; kill it after `within_s` seconds.

        A client that is not the owner waits for the end of its connection only.
        """
        ...


@runtime_checkable
class OwnerLink(Link, Protocol):
    """The link to a process that this server has started."""

    def attach(self) -> list[int]:
        """Connect a further client. Returns three descriptors: control socket, arena of requests, arena of answers.

        The caller passes them on and closes them, see ClientLink. Raises ModelFailed where the process has ended, and
        OSError if no descriptor or shared memory is left.
        """
        ...


class Started(NamedTuple):
    """A process that has loaded its model."""

    link: Link
    loaded: Loaded
    spec: ModelSpec
