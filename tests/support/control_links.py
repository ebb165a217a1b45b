"""Two ends of a control link in one event loop."""

import asyncio
import socket

from app.workers.messages import messages_from_worker, messages_to_worker
from frameworks.core.channel.descriptors import socket_pair
from frameworks.models.replicas.control import ControlLink, Workers


async def open_links(number: int = 0) -> tuple[ControlLink, ControlLink]:
    """Return the link at the supervisor and that of the worker."""
    ours, theirs = ControlLink(number, messages_from_worker()), ControlLink(number, messages_to_worker())
    await open_both(ours, theirs)
    return ours, theirs


async def open_both(ours: ControlLink, theirs: ControlLink) -> None:
    """Connect two links whose handlers are registered."""
    (one, other), (first, second) = socket.socketpair(), socket_pair()
    await asyncio.gather(ours.open(one, first), theirs.open(other, second))


async def connect(workers: Workers, worker: ControlLink) -> ControlLink:
    """Connect a worker, and return its link at the supervisor."""
    ours = ControlLink(worker.number, messages_from_worker())
    (one, other), (first, second) = socket.socketpair(), socket_pair()
    await worker.open(other, second)
    await workers.connect(ours, one, first)
    return ours
