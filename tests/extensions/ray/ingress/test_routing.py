"""Which replica gets a request: queued seconds by the learned cost, and prefixes of prompts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.ray.autoscaling import QUEUED_S, QueuedSeconds
from extensions.ray.ingress.prefix_affinity import BLOCK_CHARACTERS, MAX_BLOCKS, PrefixAffinity, blocks_of
from extensions.ray.ingress.routing import LeastSeconds, units_of
from extensions.ray.replica.metered_engine import CallCost
from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.engine.group_queue import GroupMember, Job
from frameworks.engine.process.wire.messages import QueueState
from frameworks.generation.types import Conversation, GenerateRequest, Message, Stopping
from frameworks.images.spec import ImageRequest
from frameworks.types import PairRequest, TensorBatch, TextRequest, TokenBatch


class FakeEngine:
    outage = None
    is_dead = False
    num_suspects = 0

    def __init__(self, call_s: float = 0.0, others: int = 0) -> None:
        self.queue_state = QueueState(call_s, others)


def member(call_s: float = 0.0, others: int = 0) -> GroupMember:
    engine: Any = FakeEngine(call_s, others)
    return GroupMember(engine)


def job(request: Any) -> Job:
    future: Any = None
    return Job(1, DEFAULT_TENANT, 5, future, lambda _: None, request)


def give(choose: LeastSeconds, members: list[GroupMember], request: Any, capacity: int = 100) -> GroupMember | None:
    """Choose the member for a request, which it then has."""
    sent = job(request)
    chosen = choose(members, capacity, sent)
    if chosen is not None:
        chosen.work += 1
        chosen.units += sent.units
    return chosen


def rows(count: int) -> TensorBatch:
    return TensorBatch({"x": np.zeros((count, 1), np.float32)})


def prompt(text: str) -> GenerateRequest:
    return GenerateRequest((text,), stopping=Stopping(max_tokens=8))


def test_faster_replica_gets_more_requests() -> None:
    fast, slow = member(0.001), member(0.004)
    choose = LeastSeconds()
    chosen = [give(choose, [fast, slow], rows(1)) for _ in range(50)]
    assert chosen.count(fast) == 40


def test_requests_of_other_ingresses_count() -> None:
    busy, idle = member(0.01, others=3), member(0.01)
    choose = LeastSeconds()
    chosen = [give(choose, [busy, idle], rows(1)) for _ in range(5)]
    assert chosen.count(idle) == 4


def test_long_text_outweighs_short_ones() -> None:
    members = [member(0.01), member(0.01)]
    choose = LeastSeconds()
    with_long = give(choose, members, TextRequest(["word " * 400]))
    short = [give(choose, members, TextRequest(["word"])) for _ in range(20)]
    assert with_long not in short


def test_full_replica_gets_nothing() -> None:
    full, free = member(0.001), member(1.0)
    full.work = 10
    assert give(LeastSeconds(), [full, free], rows(1), capacity=10) is free
    assert give(LeastSeconds(), [full], rows(1), capacity=10) is None
    assert give(LeastSeconds(), [], rows(1)) is None


def test_prompt_goes_where_its_prefix_is() -> None:
    members = [member(0.5) for _ in range(4)]
    choose = LeastSeconds()
    system = "You are a helpful assistant. " * 50
    first = give(choose, members, prompt(system + "one"))
    assert first is not None
    first.units = 0.0
    for number in range(8):
        chosen = give(choose, members, prompt(f"{system}{number}"))
        assert chosen is first
        first.units = 0.0
    others = {id(give(choose, members, prompt(f"{number} " * 600))) for number in range(4)}
    assert len(others) == 4


def test_busy_replica_with_prefix_is_left() -> None:
    members = [member(0.5), member(0.5)]
    choose = LeastSeconds()
    system = "You are a helpful assistant. " * 50
    chosen = [give(choose, members, prompt(system)) for _ in range(8)]
    assert {chosen.count(each) for each in members} <= {3, 4, 5}


@pytest.mark.parametrize(
    ("request_", "units"),
    [
        (ImageRequest([b"a", b"b"]), 2.0),
        (rows(3), 3.0),
        (TokenBatch([[1, 2, 3], [4]]), 5.0),
        (TextRequest(["a" * 40, "b" * 40]), 21.0),
        (PairRequest([("a" * 40, "b" * 40)]), 21.0),
        (GenerateRequest(("a", "b"), stopping=Stopping(max_tokens=10), num_choices=2), 40.0),
        (SimpleNamespace(), 1.0),
    ],
)
def test_units_follow_size(request_: Any, units: float) -> None:
    assert units_of(request_) == units


@given(st.text(max_size=3000), st.text(max_size=3000), st.integers(0, 3000))
def test_prefixes_match_whole_equal_blocks(one: str, other: str, shared: int) -> None:
    seen = PrefixAffinity()
    other = one[:shared] + other
    seen.add(blocks_of(prompt(one)))
    equal = 0
    while (equal + 1) * BLOCK_CHARACTERS <= min(len(one), len(other)) and (
        one[: (equal + 1) * BLOCK_CHARACTERS] == other[: (equal + 1) * BLOCK_CHARACTERS]
    ):
        equal += 1
    assert seen.matched(blocks_of(prompt(other))) == equal


def test_blocks_are_bounded() -> None:
    long = "x" * (10 * MAX_BLOCKS * BLOCK_CHARACTERS)
    conversation = Conversation(tuple(Message("user", long) for _ in range(10)))
    for each in (long, conversation, tuple(range(1_000_000))):
        assert len(blocks_of(GenerateRequest((each,)))) == MAX_BLOCKS
    assert blocks_of(GenerateRequest(())) == []


def test_oldest_prefixes_are_forgotten() -> None:
    seen = PrefixAffinity(max_remembered=8)
    prompts = [blocks_of(prompt(f"{number}" * 4 * BLOCK_CHARACTERS)) for number in range(4)]
    for blocks in prompts:
        seen.add(blocks)
    assert len(seen) == 8
    assert [seen.matched(blocks) for blocks in prompts] == [0, 0, 4, 4]


def test_cost_is_mean_of_recent_calls() -> None:
    cost = CallCost()
    cost.observe(0.5, 0, 1.0)
    assert cost.call_s == 0.5
    cost.observe(0.5, 10, 1.0)
    assert cost.call_s == pytest.approx(0.1, rel=0.05)
    for _ in range(100):
        cost.observe(2.0, 10, 5.0)
    assert cost.call_s == pytest.approx(0.2, rel=0.01)
    cost.observe(0.0, 0, 1e6)
    assert cost.call_s == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize(
    ("queued", "requests", "target", "wanted"),
    [
        ({}, 0.0, 0, 0),
        ({}, 3.0, 0, 1),
        ({}, 0.0, 2, 2),
        ({"a": 0.0}, 0.0, 1, 0),
        ({"a": 0.001, "b": 0.0}, 0.0, 2, 1),
        ({"a": 1.5, "b": 0.6}, 0.0, 2, 5),
    ],
)
def test_policy_divides_queued_seconds(queued: dict[str, float], requests: float, target: int, wanted: int) -> None:
    context = SimpleNamespace(
        aggregated_metrics={QUEUED_S: queued}, total_num_requests=requests, target_num_replicas=target
    )
    assert QueuedSeconds(0.5)(context) == (wanted, {})
