"""Decode steps by graphs: the logits of a step without one, on the same tensors in every replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.device.graphs import buckets_of
from frameworks.pytorch.device.queue import StreamQueue, current
from frameworks.pytorch.generation.decoders.graph_steps import GraphSteps
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from tests.frameworks.pytorch.generation.parts import part_of

CPU = torch.device("cpu")
SIZE = 6


class Replayed:
    """A decoder whose logits tell what its tables hold, and graphs that compute them again."""

    def __init__(self) -> None:
        self.layouts: list[Any] = []
        self.num_captured = 0
        self.size_bytes = 0

    def logits(self, layout: Any) -> torch.Tensor:
        self.layouts.append(layout)
        tables = layout.tables
        columns = (tables.token_ids, tables.positions, tables.blocks, tables.offsets, tables.lengths)
        is_own = torch.arange(tables.table.shape[1]) * 32 < tables.lengths[:, None]
        return torch.stack([*columns, (tables.table * is_own).sum(1)], 1).int()

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        result = compute()
        self.num_captured += 1

        def replay() -> torch.Tensor:
            with torch.inference_mode():
                return result.copy_(compute())

        return replay, result


def steps_of(decoder: Replayed, max_texts: int, max_blocks: int = 20) -> GraphSteps:
    decoder_of_steps: Any = decoder
    steps = GraphSteps(decoder_of_steps, decoder, StreamQueue(CPU), SampledIds(CPU, max_texts), max_blocks)
    steps.capture()
    return steps


def test_buckets_end_with_the_most_texts() -> None:
    assert buckets_of(1) == [1]
    assert buckets_of(3) == [1, 2, 3]
    assert buckets_of(8) == [1, 2, 4, 8]
    assert buckets_of(33) == [1, 2, 4, 8, 16, 24, 32, 33]


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 600), st.randoms(use_true_random=False)), min_size=1, max_size=9),
        min_size=1,
        max_size=4,
    )
)
def test_replay_reads_the_numbers_of_its_step(steps: list[list[tuple[int, Any]]]) -> None:
    """Whatever the step before it left in the buffers."""
    decoder = Replayed()
    graphs = steps_of(decoder, 9)
    assert decoder.num_captured == 5
    for texts in steps:
        parts = [
            part_of([numbers.randrange(100) for _ in range(start // 32 + 1)], start, 1) for start, numbers in texts
        ]
        assert graphs.computes(parts)
        logits = graphs.logits(parts)
        assert logits.shape == (len(parts), SIZE)
        for row, part in zip(logits.tolist(), parts, strict=True):
            own = part.sequence.blocks
            assert row[:5] == [part.token_ids[0], part.start, own[part.start // 32], part.start % 32, part.start + 1]
            assert row[5] == sum(own)


def test_padding_has_no_block() -> None:
    decoder = Replayed()
    graphs = steps_of(decoder, 4)
    graphs.logits([part_of([5], 9, 1)] * 4)
    graphs.logits([part_of([5], 9, 1)] * 3)
    tables = decoder.layouts[-1].tables
    assert tables.blocks.tolist() == [5, 5, 5, -1]
    assert tables.lengths.tolist() == [10, 10, 10, 0]


def test_layouts_share_their_memory() -> None:
    """A replay reads the addresses of its capture."""
    decoder = Replayed()
    graphs = steps_of(decoder, 4)
    captured = decoder.layouts[-1].tables
    graphs.logits([part_of([5], 9, 1)])
    assert decoder.layouts[-1].tables is captured
    assert captured.token_ids.tolist() == [109]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([part_of([1], 5, 2)], id="prompt"),
        pytest.param([part_of([1], 5, 1), part_of([1], 0, 9)], id="mixed"),
        pytest.param([part_of([1], 5, 1, is_last=False)], id="one token of a prompt"),
        pytest.param([part_of([1], 5, 1)] * 5, id="too many"),
    ],
)
def test_other_steps_have_no_graph(parts: list[Any]) -> None:
    assert not steps_of(Replayed(), 4).computes(parts)


def test_steps_with_adapters_have_no_graph() -> None:
    part = part_of([1], 5, 1)
    graphs = steps_of(Replayed(), 4)
    assert graphs.computes([part])
    part.sequence.request = part.sequence.request.__class__(
        **{name: getattr(part.sequence.request, name) for name in part.sequence.request.__dataclass_fields__}
        | {"adapter_id": 3}
    )
    assert not graphs.computes([part])


def test_kernels_are_launched_on_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which is that of another model where two share a process."""
    entered: list[torch.device] = []

    @contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        entered.append(wanted)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    second = torch.device("cuda", 1)
    with current(second), current(CPU):
        assert entered == [second]
    assert not entered
