"""Created collections reach every worker, also one that joins later."""

from pathlib import Path

from app.auth.principal import ANONYMOUS
from app.workers.messages import messages_to_worker
from extensions.search.operations.collections import Collections
from extensions.search.operations.files import CollectionFiles
from extensions.search.settings import CollectionEntry
from extensions.search.workers.collections import CreatedReceiver, CreatedSender, RemoteCollections
from frameworks.models.replicas.control import ControlLink, Workers
from tests.support.control_links import connect
from tests.support.loops import in_loop


async def join(workers: Workers, number: int) -> tuple[ControlLink, Collections]:
    link, collections = ControlLink(number, messages_to_worker()), Collections()
    collections.connect(RemoteCollections(link).connect)
    CreatedReceiver(link, collections)
    await connect(workers, link)
    return link, collections


@in_loop
async def test_workers_know_created_collections(tmp_path: Path) -> None:
    workers, owner = Workers(), Collections(files=CollectionFiles(tmp_path))
    sender = CreatedSender(workers, owner)
    first, before = await join(workers, 0)
    async with owner.running():
        entry = CollectionEntry(name="made", dimensions=2, max_rows=5)
        await owner.create(ANONYMOUS, entry)
        second, later = await join(workers, 1)
        await sender.applied()
        for collections in (before, later):
            assert collections.entry(ANONYMOUS, "made") == entry
            assert collections.opened("made").settings.dimensions == 2
            assert collections.is_created("made")
        await owner.delete(ANONYMOUS, "made")
        await sender.applied()
        assert before.visible(ANONYMOUS) == later.visible(ANONYMOUS) == []
    for link in (first, second):
        ours = workers.links[link.number]
        link.close()
        await ours.lost
