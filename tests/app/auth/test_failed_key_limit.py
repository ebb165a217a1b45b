"""Addresses that try keys: who is slowed, and the bound of the table."""

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.failed_key_limit import FailedKeys, Slowdown, network_of
from tests.support.clocks import Clock
from tests.support.loops import in_loop

ADDRESSES = st.sampled_from(["127.0.0.1", "10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"])


@given(st.lists(st.tuples(ADDRESSES, st.floats(0, 100)), max_size=60))
def test_note_slows_beyond_burst_and_refill(failures: list[tuple[str, float]]) -> None:
    """An address is slowed exactly if an unbounded bucket of 3 tokens, one more every 10 s, is empty."""
    clock = Clock()
    failed = FailedKeys(max_addresses=10, burst=3, refill_s=10, clock=clock)
    tokens: dict[str, float] = defaultdict(lambda: 3.0)
    since_s: dict[str, float] = {}
    for address, wait_s in failures:
        clock.now_s += wait_s
        network = network_of(address)
        left = min(3.0, tokens[network] + (clock.now_s - since_s.get(network, clock.now_s)) / 10)
        assert failed.note(address) == (left < 1)
        tokens[network], since_s[network] = max(0.0, left - 1), clock.now_s


@given(st.lists(st.integers(0, 40), max_size=200))
def test_table_keeps_the_latest_addresses(numbers: list[int]) -> None:
    failed = FailedKeys(max_addresses=8, burst=1, clock=Clock())
    latest: list[int] = []
    for number in numbers:
        assert failed.note(f"10.0.0.{number}") == (number in latest[-8:])
        latest = [each for each in latest if each != number] + [number]
        assert len(failed) == min(8, len(latest))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3::4", "20010db800010002"),
        ("2001:db8:1:2::%eth0", "20010db800010002"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("", ""),
    ],
)
def test_network_joins_addresses_of_one_host(address: str, network: str) -> None:
    assert network_of(address) == network


@in_loop
async def test_wait_delays_only_slowed_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    monkeypatch.setattr("app.auth.failed_key_limit.asyncio.sleep", sleep)
    slowdown = Slowdown(FailedKeys(burst=2, clock=Clock()), delay_s=7)
    for _ in range(3):
        await slowdown.wait("10.0.0.1")
    await slowdown.wait("10.0.0.2")
    assert delays == [7]


@in_loop
async def test_shared_table_decides_while_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    answers: list[bool | None] = [False, True, None, None]

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    async def note(address: str) -> bool | None:
        return answers.pop(0)

    monkeypatch.setattr("app.auth.failed_key_limit.asyncio.sleep", sleep)
    slowdown = Slowdown(FailedKeys(burst=1, clock=Clock()), 7, note)
    for expected in ([], [7], [7], [7, 7]):
        await slowdown.wait("10.0.0.1")
        assert delays == expected


@in_loop
async def test_delayed_requests_are_bounded() -> None:
    slowdown = Slowdown(FailedKeys(burst=0, clock=Clock()), delay_s=1000)
    waiting = [asyncio.create_task(slowdown.wait("10.0.0.1")) for _ in range(300)]
    done, pending = await asyncio.wait(waiting, timeout=0.1)
    assert (len(done), len(pending)) == (44, 256)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    assert slowdown._delayed == 0
