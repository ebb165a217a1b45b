"""Queue requests in parts: the next parts of a request are queued as others begin, and failed parts again."""

import time
from collections.abc import Hashable
from itertools import islice

from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry
from frameworks.scheduling.batch.request import Progress, Request
from frameworks.scheduling.batch.splitting import BatchItem, split_item

# Parts of one request that are queued at once: a request with very many rows does not block the loop.
_MAX_QUEUED_PARTS = 256
# The priority of parts that run again after their batch failed: before all others.
_FIRST_PRIORITY = 0


class PartQueue(FairQueue):
    """The work of each entry is a BatchItem. Owned by the event loop."""

    def begin(self, request: Request, progress: Progress) -> None:
        """Queue the first parts of a request. Its end, or its cancellation, removes those that have not begun."""
        self.track(request, progress)
        self.feed(request, progress)

    def track(self, request: Request, progress: Progress) -> None:
        """Remove the parts of a request from the queue at its end."""
        request.progress = progress
        request.future.add_done_callback(lambda _: self._forget(progress))

    def feed(self, request: Request, progress: Progress) -> None:
        """Queue parts of the backlog. Parts of similar length follow each other, and so share batches."""
        now_s = time.perf_counter()
        signature = request.signature
        shared = signature.shape if signature.shares else request
        # Parts that run again, or were cut again, may exceed the bound.
        for part in islice(progress.backlog, max(0, _MAX_QUEUED_PARTS - len(progress.queued))):
            item = BatchItem(request, progress, part)
            group = (shared, part.length) if signature.by_length else shared
            entry = QueueEntry(item, request.share, part.rows, part.length, group, signature.shares)
            self.add(entry, request.priority, now_s)
            progress.queued.add(entry)

    def requeue(
        self, item: BatchItem, group: Hashable, may_share: bool, is_closed: bool = True, order_s: float | None = None
    ) -> None:
        """Queue a part again, before all others of its tenant, unless its caller was cancelled."""
        if item.request.future.done():
            return
        part = item.part
        entry = QueueEntry(item, item.request.share, part.rows, part.length, group, may_share, is_closed)
        self.add(entry, _FIRST_PRIORITY, time.perf_counter() if order_s is None else order_s)
        item.progress.queued.add(entry)

    def take(self, entry: QueueEntry) -> None:
        """Remove an entry, which joins a batch."""
        self.remove(entry)
        entry.work.progress.queued.discard(entry)

    def cut_head(self, limits: BatchLimits) -> None:
        """Cut the head again if it has more rows than the ceiling allows; its parts stay in its place."""
        while (head := self.head()) and head.may_share and head.rows > (most := limits.most_rows(head.length)):
            for item in split_item(head.work, most):
                self.requeue(item, head.group, may_share=True, is_closed=head.is_closed, order_s=head.order)
            self.take(head)

    def fail_all(self, error: Exception) -> None:
        """Fail all requests with queued parts."""
        while (head := self.head()) is not None:
            self.remove(head)
            head.work.request.fail(error)

    def _forget(self, progress: Progress) -> None:
        """The request is complete, or was cancelled: parts that have not begun never run."""
        progress.backlog = iter(())
        for entry in progress.queued:
            self.remove(entry)
        progress.queued.clear()
