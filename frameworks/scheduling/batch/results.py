"""Merge the rows of requests into a batch, and split the outputs of the batch by request."""

from collections.abc import Sequence

from frameworks.core.errors import InvalidInput, OutOfMemory
from frameworks.core.timings import RunTrace
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.batch.splitting import BatchItem
from frameworks.scheduling.batch.worker import AllCancelled, BatchResult
from frameworks.scheduling.merging.rows import merge, split_outputs
from frameworks.types import Batch, SequenceSpec, TensorBatch
from memory.pooled_arrays import PooledArrays


def assemble(
    items: list[BatchItem], running: list[BatchItem], sequence: SequenceSpec | None, arrays: PooledArrays | None
) -> Batch:
    """Join the items whose callers still wait, and add them to `running`. Raises AllCancelled if there are none.

    Called on the worker's thread, when the batch is about to run.
    """
    running += [item for item in items if not item.request.future.done()]
    if not running:
        raise AllCancelled
    return merge([item.part.batch for item in running], sequence, arrays)


def distribute(
    items: Sequence[BatchItem], sent_s: float, result: BatchResult, sequence: SequenceSpec | None
) -> list[RunTrace]:
    """Hand each item its rows of the outputs; return the traces of those that are sampled.

    `sent_s`: when the batch was handed to the worker.
    """
    sequence = sequence if isinstance(items[0].part.batch, TensorBatch) else None
    counts, lengths = [item.part.rows for item in items], [item.part.length for item in items]
    rows = sum(counts)
    traces: list[RunTrace] = []
    for item, outputs in zip(items, split_outputs(result.outputs, counts, lengths, sequence), strict=True):
        item.progress.batch_rows = max(item.progress.batch_rows, rows)
        trace = item.request.timings.trace
        if trace is not None and not item.request.future.done():
            traces.append(trace)
        _add_result(item, outputs, sent_s, result)
    return traces


def _add_result(item: BatchItem, outputs: Outputs, sent_s: float, result: BatchResult) -> None:
    """Add the outputs of one part to its request, and complete the request after its last part."""
    request, progress = item.request, item.progress
    if not request.future.done():
        begun_s = sent_s + result.queue_s
        if not progress.has_run:
            request.timings.queued(request.arrived_s, max(begun_s, request.arrived_s))
        request.timings.computed(begun_s, begun_s + result.compute_s)
    progress.has_run = True
    progress.num_pending -= 1
    try:
        assembled = progress.assembler.add(item.part, outputs)
    except InvalidInput as error:
        request.fail(error)
        return
    except MemoryError as error:
        request.fail(OutOfMemory(f"the response does not fit into memory: {error}"))
        return
    if not progress.num_pending:
        request.complete(assembled, progress)
