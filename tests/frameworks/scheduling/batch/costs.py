"""Cost models that are already trained."""

from collections.abc import Callable, Iterable
from itertools import product

from frameworks.scheduling.batch.cost import CostModel

MOST_ROWS = 128


def costly_start(rows: int, length: int) -> float:
    """Return the seconds of a batch whose start costs as much as a thousand tokens, so that batching always pays."""
    return 1e-3 + 1e-6 * rows * length


class _FixedCostModel(CostModel):
    def observe(self, rows: int, length: float, seconds: float) -> None:
        """Ignore measured times, which depend on the load of the machine."""


def fixed_cost() -> CostModel:
    """Return a trained model that learns no more, for tests of exact batches."""
    cost = _FixedCostModel()
    vars(cost).update(vars(trained()))
    return cost


def trained(law: Callable[[int, int], float] = costly_start, lengths: Iterable[int] = (1,)) -> CostModel:
    """Return a model that has measured batches of up to MOST_ROWS rows, each size twice."""
    cost = CostModel()
    for power, length, _ in product(range(MOST_ROWS.bit_length()), lengths, range(2)):
        cost.observe(1 << power, length, law(1 << power, length))
    if cost.most_rows <= MOST_ROWS:  # the next batch is a small trial
        cost.observe(MOST_ROWS, max(lengths), law(MOST_ROWS, max(lengths)))
    assert cost.most_rows > MOST_ROWS
    return cost


def cost_of_terms(start_s: float, per_token_s: float, per_pair_s: float = 0.0, per_square_s: float = 0.0) -> CostModel:
    """Return a model with exactly these terms."""
    cost = trained()
    cost.start_s, cost.per_token_s, cost.per_pair_s, cost.per_square_s = start_s, per_token_s, per_pair_s, per_square_s
    return cost
