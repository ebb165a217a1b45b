"""Tell workers which collections were created at run time. The supervisor has them open."""

import asyncio
from contextlib import suppress

from extensions.search.operations.collections import Collections
from extensions.search.settings import CollectionEntry
from extensions.search.workers.messages import CollectionsNoted, CreatedCollections
from frameworks.engine.process.wire.messages import ChannelLost
from frameworks.replicas.control import ControlLink, Workers


class CreatedReceiver:
    """The created collections in a worker."""

    def __init__(self, link: ControlLink, collections: Collections) -> None:
        """`link`: not yet open. `collections`: connected to those of the supervisor."""
        self._collections = collections
        link.answer(CreatedCollections, self._note)

    async def _note(self, message: CreatedCollections) -> CollectionsNoted:
        self._collections.show_created(map(CollectionEntry.model_validate_json, message.entries))
        return CollectionsNoted(message.id)


class CreatedSender:
    """Sends the created collections to all workers whenever they change. Owned by the event loop."""

    def __init__(self, workers: Workers, collections: Collections) -> None:
        """Made before the first worker is connected."""
        self._workers = workers
        self._collections = collections
        self._unconfirmed: set[asyncio.Task[None]] = set()
        collections.on_created_changed = self._send_all
        workers.on_joined(self._send)

    async def applied(self) -> None:
        """Return when all workers have the collections of now."""
        if self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    def _send_all(self) -> None:
        for link in self._workers.links.values():
            self._send(link)

    def _send(self, link: ControlLink) -> None:
        entries = [each.model_dump_json(exclude={"path"}).encode() for each in self._collections.created]
        task = link.start(self._ask(link, entries))
        self._unconfirmed.add(task)
        task.add_done_callback(self._unconfirmed.discard)

    async def _ask(self, link: ControlLink, entries: list[bytes]) -> None:
        with suppress(ChannelLost):
            await link.ask(lambda number: CreatedCollections(number, entries))
