"""A request in parts that may run in different batches: cut before the queue, joined in order after it."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from frameworks.batches.padding import as_long, missing_mask, pad_and_join
from frameworks.errors import InvalidInput
from frameworks.types import Batch, SequenceSpec, TensorBatch, TokenBatch, Value
from memory.pooled_arrays import PooledArrays


class BatchSignature(NamedTuple):
    """What the scheduler needs to know of a batch.

    `length`: what a row costs is measured by it: tokens of a text, the size of a sequence axis, elements of a row of
    other tensors. `shape`: dtypes, every dimension but the first (and that of a sequence which can be padded), the
    outputs asked for; batches that are equal in it may share a run where `shares` is True.
    """

    rows: int
    length: int
    shape: Hashable
    shares: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a request that stay together. `position`: the first of them among the request's rows."""

    batch: Batch
    position: int
    rows: int
    length: int


def signature_of(batch: Batch, batched_inputs: frozenset[str], sequence: SequenceSpec | None = None) -> BatchSignature:
    """`batched_inputs`: only tensors of these share a run, and only if each has one row for each of the others': where
    one is broadcast, rows cannot be told apart. Texts always share.
    """
    if isinstance(batch, TokenBatch):
        return BatchSignature(batch.rows, max(1, max(map(len, batch.token_ids), default=1)), TokenBatch, shares=True)
    if sequence is not None:
        return _outline_of_sequences(batch, batched_inputs, sequence)
    rows = -1
    elements = 0
    shares = True
    shape: list[Hashable] = []
    for name, value in batch.inputs.items():
        if not isinstance(value, np.ndarray) or not value.ndim:
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
    return BatchSignature(max(1, rows), elements or 1, (batch.output_names, *shape), shares and rows > 0)


def split_request(batch: Batch, signature: BatchSignature, max_rows: int) -> tuple[int, Iterator[Part]]:
    """How many parts a request has, and the parts, longest first, made as they are asked for: of 100,000 texts the
    event loop has more to do meanwhile.

    Texts are cut one by one, tensors that share in blocks of at most `max_rows`, others not at all.
    """
    rows = signature.rows
    if isinstance(batch, TokenBatch):
        if rows <= 1:
            return 1, iter((Part(batch, 0, rows, signature.length),))
        return rows, _texts(batch)
    if not signature.shares or rows <= max_rows:
        return 1, iter((Part(batch, 0, rows, signature.length),))
    return -(-rows // max_rows), blocks(Part(batch, 0, rows, signature.length), max_rows)


def blocks(part: Part, max_rows: int) -> Iterator[Part]:
    """A part whose rows may run in different batches, in parts of at most `max_rows`."""
    for at in range(0, part.rows, max_rows):
        rows = min(max_rows, part.rows - at)
        if isinstance(part.batch, TokenBatch):
            texts = part.batch.part(at, rows)
            yield Part(texts, part.position + at, rows, max(1, *map(len, texts.token_ids)))
        else:
            block = {name: _rows(value, at, rows) for name, value in part.batch.inputs.items()}
            yield Part(TensorBatch(block, part.batch.output_names), part.position + at, rows, part.length)


def follow_rows(outputs: dict[str, Value], rows: int) -> bool:
    """Whether each output has one row for each of the batch's, so that it can be shared."""
    for value in outputs.values():
        if isinstance(value, np.ndarray):
            if value.shape[:1] != (rows,):
                return False
        elif isinstance(value, list) and len(value) != rows:
            return False
    return True


def merge(batches: Sequence[Batch], sequence: SequenceSpec | None = None, arrays: PooledArrays | None = None) -> Batch:
    """One batch of those of one shape, in their order. Rows of `sequence` are padded to the longest of them.

    `arrays`: what large tensors are joined in.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, TokenBatch):
        return _merged_texts([batch for batch in batches if isinstance(batch, TokenBatch)])
    tensors = [batch.inputs for batch in batches if isinstance(batch, TensorBatch)]
    joined: dict[str, Value]
    if sequence is not None:
        joined = pad_and_join(tensors, sequence, arrays)
    else:
        join = arrays.concatenate if arrays else np.concatenate
        joined = {
            name: join([value for each in tensors if isinstance(value := each[name], np.ndarray)])
            for name in first.inputs
        }
    return TensorBatch(joined, first.output_names)


def split_outputs(
    outputs: dict[str, Value],
    counts: Sequence[int],
    lengths: Sequence[int] = (),
    sequence: SequenceSpec | None = None,
) -> list[dict[str, Value]]:
    """The outputs of a batch, for each of its members, which have so many rows: views, nothing is copied.

    What is as long as a `sequence` is cut back to the member's own length.
    """
    if len(counts) == 1:
        return [outputs]
    shares: list[dict[str, Value]] = []
    at = 0
    for rows in counts:
        shares.append({name: _rows(value, at, rows) for name, value in outputs.items()})
        at += rows
    if sequence is not None and sequence.output_axes:
        shares = [as_long(own, length, sequence) for own, length in zip(shares, lengths, strict=True)]
    return shares


_ASK_FOR_LESS = "ask for fewer rows at a time, at most max_batch_size"


class ResultAssembler:
    """A request's outputs, put together from those of its parts, which may come in any order."""

    def __init__(self, rows: int) -> None:
        """`rows`: of all parts together."""
        self._rows = rows
        self._outputs: dict[str, Value] = {}

    def add(self, part: Part, outputs: dict[str, Value]) -> dict[str, Value]:
        """What is there so far. Raises InvalidInput where a part's outputs have not one row for each of its own."""
        if part.rows == self._rows:
            return outputs
        if not follow_rows(outputs, part.rows):
            raise InvalidInput("inputs", f"the graph's outputs do not follow its rows; {_ASK_FOR_LESS}")
        for name, value in outputs.items():
            if isinstance(value, np.ndarray):
                if name not in self._outputs:
                    self._outputs[name] = np.empty((self._rows, *value.shape[1:]), value.dtype)
                whole = self._outputs[name]
                assert isinstance(whole, np.ndarray)
                if whole.shape[1:] != value.shape[1:]:
                    raise InvalidInput("inputs", f'rows of output "{name}" differ in shape; {_ASK_FOR_LESS}')
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


def _outline_of_sequences(batch: TensorBatch, batched_inputs: frozenset[str], sequence: SequenceSpec) -> BatchSignature:
    """As of other tensors; the inputs that have the sequence axis must agree in its size, too, to share."""
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
    return BatchSignature(max(1, rows), max(1, length), (batch.output_names, *shape), shares and rows > 0)


def _texts(batch: TokenBatch) -> Iterator[Part]:
    lengths = np.fromiter(map(len, batch.token_ids), np.int64, batch.rows)
    for at in np.argsort(-lengths, kind="stable").tolist():
        yield Part(batch.part(at, 1), at, 1, max(1, len(batch.token_ids[at])))


def _merged_texts(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Beside pairs of texts the tokens of single ones are of the first type."""
    token_ids = list(chain.from_iterable(batch.token_ids for batch in batches))
    if all(batch.token_type_ids is None for batch in batches):
        return TokenBatch(token_ids)
    types = (batch.token_type_ids or [[0] * len(ids) for ids in batch.token_ids] for batch in batches)
    return TokenBatch(token_ids, list(chain.from_iterable(types)))


def _rows(value: Value, at: int, rows: int) -> Value:
    """The rows of a tensor, or the items of a sequence that has one for each row (ZipMap's)."""
    return value[at : at + rows] if isinstance(value, np.ndarray | list) else value
