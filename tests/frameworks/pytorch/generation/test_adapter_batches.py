"""The rows of a step by adapter, and their products."""

import random

import pytest
import torch

from frameworks.pytorch.generation.decoders.adapters.batches import Batch, Run, batches_of, runs_of
from frameworks.pytorch.generation.decoders.adapters.layers import Pair, StepAdapters, stacks_of
from frameworks.pytorch.generation.decoders.decoder import AdaptableLayer
from frameworks.pytorch.generation.weights.linear import padded_rows

CPU = torch.device("cpu")
JOINED = (("query", 6), ("key", 3), ("value", 3))


def test_runs_skip_rows_without_adapter() -> None:
    assert runs_of([0, 1, 1, 3, 0, 3], [2, 1, 4, 1, 5, 2], CPU) == [Run(1, 2, 7), Run(3, 7, 8), Run(3, 13, 15)]


def test_long_runs_have_few_sizes() -> None:
    sizes = set()
    for rows in range(1, 513):
        runs = runs_of([0, 7], [3, rows], CPU)
        assert [run.start for run in runs] == [3, *(run.end for run in runs[:-1])]
        assert runs[-1].end == 3 + rows
        assert len(runs) <= 2
        sizes |= {run.end - run.start for run in runs}
    assert all(padded_rows(size, CPU) == size for size in sizes)


def test_equal_rows_need_no_gather() -> None:
    runs = [Run(4, 2, 5), Run(6, 5, 8), Run(9, 8, 11)]
    assert batches_of(runs, (1, 4, 6, 9), CPU) == [Batch(2, 9, 1, 3, None, None)]


def test_unequal_rows_are_padded() -> None:
    """Adapter 2 has no rows, and lies between."""
    [batch] = batches_of([Run(1, 1, 4), Run(3, 4, 6), Run(4, 6, 9)], (1, 2, 3, 4), CPU)
    assert batch[:4] == (1, 8, 0, 4)
    assert batch.gather is not None
    assert batch.scatter is not None
    assert batch.gather.tolist() == [1, 2, 3, 1, 1, 1, 4, 5, 1, 6, 7, 8]
    assert batch.gather[batch.scatter].tolist() == list(range(1, 9))


@pytest.mark.parametrize(
    "runs",
    [
        [Run(1, 0, 9), Run(2, 9, 18)],
        [Run(1, 0, 8), Run(2, 8, 9), Run(3, 9, 10), Run(4, 10, 11)],
        [Run(1, 0, 2), Run(2, 3, 5)],
        [Run(2, 0, 2), Run(1, 2, 4)],
        [Run(1, 0, 1), Run(6, 1, 2)],
    ],
    ids=["long", "unequal", "not adjacent", "in another order", "far apart"],
)
def test_other_rows_have_batches_of_their_own(runs: list[Run]) -> None:
    assert len(batches_of(runs, range(1, 7), CPU)) > 1


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str
)
def test_matmuls_of_any_rows_match_each_row(dtype: torch.dtype, tolerance: float) -> None:
    """Random ranks, modules and rows; one row is infinite, and must not change another."""
    choose = random.Random(0)
    drawn = torch.Generator().manual_seed(0)

    def random_tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn).to(dtype)

    def random_pairs(modules: tuple[tuple[str, int], ...]) -> dict[str, Pair]:
        ranks = {name: choose.choice((0, 2, 2, 2, 3)) for name, _ in modules}
        return {
            name: Pair(random_tensor(5, ranks[name]), random_tensor(ranks[name], outputs))
            for name, outputs in modules
            if ranks[name]
        }

    for modules in [JOINED, JOINED[:1]] * 30:
        adapters = {number: random_pairs(modules) for number in range(1, choose.randint(2, 9))}
        texts = [(choose.choice([0, *adapters]), choose.choice((1, 1, 2, 3, 40))) for _ in range(choose.randint(1, 12))]
        if choose.random() < 0.7:
            texts.sort()
        of_rows = [adapter for adapter, count in texts for _ in range(count)]
        filling = choose.choice((0, 2))
        rows = random_tensor(len(of_rows) + filling, 5)
        infinite = choose.randrange(len(of_rows))
        rows[infinite] = torch.inf
        product = random_tensor(len(rows), sum(outputs for _, outputs in modules))
        expected = product.float()
        for row, adapter in enumerate(of_rows):
            first = 0
            for name, outputs in modules:
                pair = adapters[adapter].get(name) if adapter else None
                if pair is not None:
                    expected[row, first : first + outputs] += rows[row].float() @ pair.a.float() @ pair.b.float()
                first += outputs
        stacks = stacks_of(AdaptableLayer(None, "linear", modules, 5), adapters)
        numbers, counts = zip(*texts, strict=True)
        StepAdapters([stacks], runs_of(numbers, counts, CPU), [], CPU).add_to(product, rows, 0, is_selected=False)
        product[infinite] = expected[infinite] = 0
        torch.testing.assert_close(product.float(), expected, atol=4 * tolerance, rtol=tolerance)


def test_large_and_small_matmuls_match() -> None:
    """The same rows in steps below and above the size that one thread computes."""
    drawn = torch.Generator().manual_seed(0)
    pairs = {
        number: {"query": Pair(torch.randn(512, 8, generator=drawn), torch.randn(8, 512, generator=drawn))}
        for number in (1, 2, 3)
    }
    stacks = stacks_of(AdaptableLayer(None, "linear", (("query", 512),), 512), pairs)
    rows = torch.randn(900, 512, generator=drawn)

    def added(counts: tuple[int, ...]) -> torch.Tensor:
        runs = runs_of((1, 2, 3), counts, CPU)
        product = torch.zeros(sum(counts), 512)
        StepAdapters([stacks], runs, [], CPU).add_to(product, rows, 0, is_selected=False)
        return product

    large, small = added((300, 300, 300)), added((4, 4, 4))
    for place, each in enumerate(pairs.values()):
        a, b = each["query"]
        for product, count in ((large, 300), (small, 4)):
            own = slice(place * count, (place + 1) * count)
            torch.testing.assert_close(product[own], rows[own] @ a @ b, atol=1e-3, rtol=1e-4)


def test_stacks_give_their_adapters_back() -> None:
    pairs = {
        number: {
            "query": Pair(torch.randn(5, 2), torch.randn(2, 6)),
            "value": Pair(torch.randn(5, 3), torch.randn(3, 3)),
        }
        for number in (1, 2)
    }
    [stack] = stacks_of(AdaptableLayer(None, "linear", JOINED, 5), pairs)
    for number, own in pairs.items():
        found = stack.pairs_of(number)
        assert found.keys() == own.keys()
        for name, pair in found.items():
            assert torch.equal(pair.a, own[name].a)
            assert torch.equal(pair.b, own[name].b)
