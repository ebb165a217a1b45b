"""Split requests into parts for batches, merge parts into batches, and assemble the outputs of a request."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.scheduling.merging.padding import cut_to_length, missing_mask, pad_and_join
from frameworks.types import Batch, SequenceSpec, TaskBatch, TensorBatch, TextSpec, TokenBatch, Value
from memory.pooled_arrays import PooledArrays


class BatchSignature(NamedTuple):
    """The properties of a batch that the scheduler uses.

    `length`: the cost of a row, as tokens of a text, size of the sequence axis, or elements of other rows. `shape`:
    dtypes, dimensions without the first (and without a padded sequence), requested outputs. Batches of equal shape may
    share a run where `shares` is True. `by_length`: only parts of equal length may. `in_blocks`: the texts of a request
    stay together, as they are not padded.
    """

    rows: int
    length: int
    shape: Hashable
    shares: bool
    by_length: bool = False
    in_blocks: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a request that stay together. `position`: of the first row in the request."""

    batch: Batch
    position: int
    rows: int
    length: int


def signature_of(
    batch: Batch,
    batched_inputs: frozenset[str],
    sequence: SequenceSpec | None = None,
    all_outputs: tuple[str, ...] = (),
    text: TextSpec | None = None,
    equal_inputs: frozenset[str] = frozenset(),
) -> BatchSignature:
    """Return the signature of a batch. Texts share a run, unless padding changes those of the model of `text`.

    `batched_inputs`: tensors share a run only if all of them are named here and have equal numbers of rows. A
    broadcast tensor has no rows of its own. `all_outputs`: those of the model, which a batch without names has too.
    `equal_inputs`: scalars that have to be equal in all requests of a run.
    """
    if isinstance(batch, TokenBatch):
        longest = max(1, max(map(len, batch.token_ids), default=1))
        by_length = text is not None and text.unpadded_because is not None
        in_blocks = text is not None and not text.pads
        return BatchSignature(batch.rows, longest, TokenBatch, True, by_length, in_blocks)
    if isinstance(batch, TaskBatch):
        # The items of a batch have one shape.
        shape_of_items = batch.items[0].shape
        longest = max(item.length for item in batch.items)
        return BatchSignature(batch.rows, longest, (TaskBatch, shape_of_items), shares=shape_of_items is not None)
    if sequence is not None:
        return _signature_of_sequences(batch, batched_inputs, sequence, all_outputs)
    rows = -1
    elements = 0
    shares = True
    shape: list[Hashable] = []
    for name, value in batch.inputs.items():
        if not isinstance(value, np.ndarray) or not value.ndim:
            if isinstance(value, np.ndarray) and name in equal_inputs and value.dtype.kind != "O":
                shape.append((name, value.dtype.char, value.tobytes()))
            else:
                shares = False
            continue
        dimensions = value.shape
        if rows == -1:
            rows = dimensions[0]
        shares = shares and name in batched_inputs and rows == dimensions[0]
        elements += value.size // (dimensions[0] or 1)
        shape.append((name, value.dtype.char, dimensions[1:]))
    if len(shape) > 1:
        shape.sort(key=str)
    names = batch.output_names or all_outputs
    return BatchSignature(max(1, rows), elements or 1, (names, *shape), shares and rows > 0)


def with_scalars(inputs: dict[str, Value], names: Collection[str]) -> dict[str, Value]:
    """Return inputs with a scalar for each of `names` that has one element in any shape."""
    found = {
        name: value.reshape(())
        for name in names
        if isinstance(value := inputs.get(name), np.ndarray) and value.ndim and value.size == 1
    }
    return {**inputs, **found} if found else inputs


def split_request(batch: Batch, signature: BatchSignature, max_rows: int) -> tuple[int, Iterator[Part]]:
    """Return the number of parts of a request and an iterator of the parts, longest first.

    Texts and items of a task are split one by one, shared tensors, and texts without padding, in blocks of at most
    `max_rows`, other tensors not at all. The iterator is lazy: splitting 100,000 texts at once would block the event
    loop.
    """
    rows = signature.rows
    if isinstance(batch, TokenBatch) and rows > 1 and not signature.in_blocks:
        return rows, _texts(batch)
    if isinstance(batch, TaskBatch):
        return rows, _items(batch)
    if not signature.shares or rows <= max_rows:
        return 1, iter((Part(batch, 0, rows, signature.length),))
    return -(-rows // max_rows), blocks(Part(batch, 0, rows, signature.length), max_rows)


def blocks(part: Part, max_rows: int) -> Iterator[Part]:
    """Split a part into parts of at most `max_rows`."""
    for at in range(0, part.rows, max_rows):
        rows = min(max_rows, part.rows - at)
        if isinstance(part.batch, TokenBatch):
            texts = part.batch.part(at, rows)
            yield Part(texts, part.position + at, rows, max(1, *map(len, texts.token_ids)))
        elif isinstance(part.batch, TaskBatch):
            yield _part_of_items(part.batch.part(at, rows), part.position + at)
        else:
            block = {name: _rows(value, at, rows) for name, value in part.batch.inputs.items()}
            yield Part(TensorBatch(block, part.batch.output_names), part.position + at, rows, part.length)


def follow_rows(outputs: dict[str, Value], rows: int) -> bool:
    """Whether each output has one row for each row of the batch, so that it can be split."""
    for value in outputs.values():
        if isinstance(value, np.ndarray):
            if value.shape[:1] != (rows,):
                return False
        elif isinstance(value, list) and len(value) != rows:
            return False
    return True


def merge(batches: Sequence[Batch], sequence: SequenceSpec | None = None, arrays: PooledArrays | None = None) -> Batch:
    """Merge batches of one shape, in order. Rows of a `sequence` are padded to the longest.

    `arrays`: the pool for large tensors.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, TokenBatch):
        return _merged_texts([batch for batch in batches if isinstance(batch, TokenBatch)])
    if isinstance(first, TaskBatch):
        return TaskBatch([item for batch in batches if isinstance(batch, TaskBatch) for item in batch.items])
    tensors = [batch.inputs for batch in batches if isinstance(batch, TensorBatch)]
    joined: dict[str, Value]
    if sequence is not None:
        joined = pad_and_join(tensors, sequence, arrays)
    else:
        join = arrays.concatenate if arrays else np.concatenate
        joined = {
            name: join([value for each in tensors if isinstance(value := each[name], np.ndarray)])
            if not isinstance(of_first, np.ndarray) or of_first.ndim
            else of_first
            for name, of_first in first.inputs.items()
        }
    return TensorBatch(joined, first.output_names)


def split_outputs(
    outputs: dict[str, Value],
    counts: Sequence[int],
    lengths: Sequence[int] = (),
    sequence: SequenceSpec | None = None,
) -> list[dict[str, Value]]:
    """Split the outputs of a batch into those of its items; `counts` are their rows. Returns views.

    Outputs of a `sequence` are cut back to the `lengths` of the items.
    """
    if len(counts) == 1:
        return [outputs]
    split: list[dict[str, Value]] = [{} for _ in counts]
    ends = list(accumulate(counts))
    for name, value in outputs.items():
        if isinstance(value, np.ndarray | list):
            for own, rows, end in zip(split, counts, ends, strict=True):
                own[name] = value[end - rows : end]
        else:
            for own in split:
                own[name] = value
    if sequence is not None and sequence.output_axes:
        split = [cut_to_length(own, length, sequence) for own, length in zip(split, lengths, strict=True)]
    return split


_SEND_LESS = "send fewer rows at a time, at most max_batch_size"


class ResultAssembler:
    """Assemble the outputs of a request from those of its parts, which arrive in any order."""

    def __init__(self, rows: int) -> None:
        """`rows`: the number of rows of the request."""
        self._rows = rows
        self._outputs: dict[str, Value] = {}

    def add(self, part: Part, outputs: dict[str, Value]) -> dict[str, Value]:
        """Add the outputs of a part; return those added so far. Raises InvalidInput where the rows do not match."""
        if part.rows == self._rows:
            return outputs
        if not follow_rows(outputs, part.rows):
            raise InvalidInput(
                "inputs", f"the outputs of the graph do not have one row for each input row; {_SEND_LESS}"
            )
        for name, value in outputs.items():
            if isinstance(value, np.ndarray):
                if name not in self._outputs:
                    self._outputs[name] = np.empty((self._rows, *value.shape[1:]), value.dtype)
                whole = self._outputs[name]
                assert isinstance(whole, np.ndarray)
                if whole.shape[1:] != value.shape[1:]:
                    raise InvalidInput("inputs", f'rows of output "{name}" differ in shape; {_SEND_LESS}')
                whole[part.position : part.position + part.rows] = value
            elif isinstance(value, list):
                if name not in self._outputs:
                    self._outputs[name] = [None] * self._rows
                items = self._outputs[name]
                assert isinstance(items, list)
                items[part.position : part.position + part.rows] = value
            else:
                self._outputs[name] = value
        return self._outputs


def _signature_of_sequences(
    batch: TensorBatch, batched_inputs: frozenset[str], sequence: SequenceSpec, all_outputs: tuple[str, ...]
) -> BatchSignature:
    """As for other tensors; to share, the inputs with the sequence axis must also agree in its size."""
    rows = length = -1
    shares = True
    inputs = batch.inputs
    if (mask := missing_mask(inputs, sequence)) is not None:
        inputs = {**inputs, **mask}
    shape: list[Hashable] = []
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray) or not value.ndim:
            shares = False
            continue
        dimensions = value.shape
        shares = shares and name in batched_inputs and rows in (-1, dimensions[0])
        rows = dimensions[0] if rows == -1 else rows
        if name in sequence.pad_values:
            axis = sequence.axis
            size = dimensions[axis] if value.ndim > axis else 0
            shares = shares and size > 0 and length in (-1, size)
            length = max(length, size)
            if sequence.unpadded_because is None:
                dimensions = (*dimensions[:axis], -1, *dimensions[axis + 1 :])
        shape.append((name, value.dtype.char, dimensions[1:]))
    shape.sort(key=str)
    names = batch.output_names or all_outputs
    return BatchSignature(max(1, rows), max(1, length), (names, *shape), shares and rows > 0)


def _texts(batch: TokenBatch) -> Iterator[Part]:
    lengths = np.fromiter(map(len, batch.token_ids), np.int64, batch.rows)
    for at in np.argsort(-lengths, kind="stable").tolist():
        yield Part(batch.part(at, 1), at, 1, max(1, len(batch.token_ids[at])))


def _items(batch: TaskBatch) -> Iterator[Part]:
    lengths = np.array([item.length for item in batch.items])
    for at in np.argsort(-lengths, kind="stable").tolist():
        yield _part_of_items(batch.part(at, 1), at)


def _part_of_items(batch: TaskBatch, position: int) -> Part:
    return Part(batch, position, batch.rows, max(item.length for item in batch.items))


def _merged_texts(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Merge texts. Beside pairs of texts, the tokens of single texts have type 0."""
    token_ids = list(chain.from_iterable(batch.token_ids for batch in batches))
    attended = unpooled = types = are_queries = kinds = None
    if any(batch.attended is not None for batch in batches):
        attended = [n for batch in batches for n in batch.attended or map(len, batch.token_ids)]
    if any(batch.unpooled is not None for batch in batches):
        unpooled = [n for batch in batches for n in batch.unpooled or [0] * batch.rows]
    if any(batch.token_type_ids is not None for batch in batches):
        types = [
            row for batch in batches for row in batch.token_type_ids or [[0] * len(ids) for ids in batch.token_ids]
        ]
    if any(batch.are_queries is not None for batch in batches):
        are_queries = [each for batch in batches for each in batch.are_queries or [False] * batch.rows]
    if any(batch.kinds is not None for batch in batches):
        kinds = [each for batch in batches for each in batch.kinds or [("dense",)] * batch.rows]
    return TokenBatch(token_ids, types, attended, unpooled, are_queries, kinds)


def _rows(value: Value, at: int, rows: int) -> Value:
    """Return rows of a tensor, or the items of a sequence with one item for each row (of ZipMap)."""
    if isinstance(value, np.ndarray) and not value.ndim:
        return value
    return value[at : at + rows] if isinstance(value, np.ndarray | list) else value
