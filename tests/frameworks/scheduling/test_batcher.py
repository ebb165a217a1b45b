"""What is put together: never too much, never of two kinds, never dearer than its parts, and everybody in the end."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.batcher import BatchLimits, BatchPlan, next_batch
from frameworks.scheduling.cost import CostModel
from frameworks.scheduling.waiting import Piece, WaitingLine

sizes = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 200), st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=40
)
limits = st.builds(BatchLimits, max_rows=st.integers(1, 16), max_tokens=st.none() | st.integers(1, 2000))
terms = st.tuples(st.floats(1e-6, 1.0), st.floats(0, 1e-2), st.floats(0, 1e-4))


def known(start_s: float, per_token_s: float, per_pair_s: float = 0.0) -> CostModel:
    """As if it had been learned."""
    cost = CostModel()
    cost.observe(1, 1, 1.0)
    cost.start_s, cost.per_token_s, cost.per_pair_s = start_s, per_token_s, per_pair_s
    return cost


def line_of(*shapes: tuple[int, int, str, int]) -> WaitingLine:
    """Pieces of (rows, length, group, priority), one a millisecond."""
    line = WaitingLine(1.0)
    for i, (rows, length, group, priority) in enumerate(shapes):
        line.add(Piece(i, rows, length, group), priority, now_s=i / 1000)
    return line


def plan_of(line: WaitingLine, cost: CostModel, limits: BatchLimits) -> BatchPlan:
    plan = next_batch(line, cost, limits)
    assert plan is not None
    return plan


def check(plan: BatchPlan, head: Piece | None, limits: BatchLimits) -> None:
    assert plan.pieces[0] is head
    assert len({id(piece) for piece in plan.pieces}) == len(plan.pieces)
    assert len({piece.group for piece in plan.pieces}) == 1
    assert plan.rows == sum(piece.rows for piece in plan.pieces)
    assert plan.length == max(piece.length for piece in plan.pieces)
    if len(plan.pieces) > 1:
        assert plan.rows <= limits.max_rows
        assert limits.max_tokens is None or plan.rows * plan.length <= limits.max_tokens


@given(sizes, limits, terms)
def test_bounds_hold_nothing_is_dearer_than_its_parts_and_everybody_goes_once(
    shapes: list[tuple[int, int, str, int]], limits: BatchLimits, terms: tuple[float, float, float]
) -> None:
    line, cost = line_of(*shapes), known(*terms)
    gone: list[int] = []
    while line.pieces:
        plan = plan_of(line, cost, limits)
        check(plan, line.head(), limits)
        apart_s = sum(cost.seconds(piece.rows, piece.length) for piece in plan.pieces)
        assert cost.seconds(plan.rows, plan.length) <= apart_s * (1 + 1e-9)
        for piece in plan.pieces:
            line.remove(piece)
            gone.append(piece.work)
    assert sorted(gone) == list(range(len(shapes)))
    assert next_batch(line, cost, limits) is None


@given(sizes, limits)
def test_while_nothing_is_known_a_fifth_of_padding_is_the_most(
    shapes: list[tuple[int, int, str, int]], limits: BatchLimits
) -> None:
    line = line_of(*shapes)
    while line.pieces:
        plan = plan_of(line, CostModel(), limits)
        check(plan, line.head(), limits)
        unpadded = sum(piece.rows * piece.length for piece in plan.pieces)
        assert plan.rows * plan.length <= 1.2 * unpadded + 1e-9
        for piece in plan.pieces:
            line.remove(piece)


def test_padding_does_not_creep_in_step_by_step() -> None:
    line = line_of(*((1, length, "a", 5) for length in (10, 12, 14, 16, 18, 20, 22, 24)))
    plan = plan_of(line, CostModel(), BatchLimits(max_rows=8))
    assert [piece.length for piece in plan.pieces] == [10, 12, 14]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_where_a_start_costs_nothing_no_padding_is_bought(lengths: list[int]) -> None:
    line, cost = line_of(*((1, length, "a", 5) for length in lengths)), known(1e-9, 1e-3)
    while line.pieces:
        plan = plan_of(line, cost, BatchLimits(max_rows=8))
        assert len({piece.length for piece in plan.pieces}) == 1
        for piece in plan.pieces:
            line.remove(piece)


@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 50), terms, st.booleans())
def test_equal_lengths_fill_the_batch(
    waiting: int, max_rows: int, length: int, terms: tuple[float, float, float], is_known: bool
) -> None:
    line = line_of(*((1, length, "a", 5) for _ in range(waiting)))
    plan = plan_of(line, known(*terms) if is_known else CostModel(), BatchLimits(max_rows))
    assert [piece.work for piece in plan.pieces] == list(range(min(waiting, max_rows)))
    assert plan.is_full == (waiting >= max_rows)


def test_where_a_start_is_dear_padding_is_bought_and_the_nearest_go_first() -> None:
    line = line_of((1, 10, "a", 1), (1, 100, "a", 5), (1, 9, "a", 5), (1, 12, "a", 5))
    everything = plan_of(line, known(1.0, 1e-3), BatchLimits(max_rows=4))
    assert {piece.work for piece in everything.pieces} == {0, 1, 2, 3}
    two = plan_of(line, known(1.0, 1e-3), BatchLimits(max_rows=2))
    assert [piece.length for piece in two.pieces] == [10, 9]


def test_a_piece_larger_than_every_bound_goes_by_itself() -> None:
    line = line_of((50, 100, "a", 1), (1, 100, "a", 5))
    plan = plan_of(line, known(1.0, 1e-3), BatchLimits(max_rows=8, max_tokens=200))
    assert [piece.work for piece in plan.pieces] == [0]
    assert plan.is_full


def test_tokens_are_counted_with_their_padding() -> None:
    line = line_of((1, 10, "a", 1), *((1, 10, "a", 5) for _ in range(9)))
    assert plan_of(line, known(1.0, 1e-3), BatchLimits(max_rows=100, max_tokens=45)).rows == 4
    line = line_of((1, 10, "a", 1), (1, 23, "a", 5), (1, 22, "a", 5))
    assert [p.work for p in plan_of(line, known(1.0, 1e-3), BatchLimits(100, max_tokens=45)).pieces] == [0, 2]
