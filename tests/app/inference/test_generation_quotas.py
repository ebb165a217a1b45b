"""Generated text under the limits of a tenant: its tokens, and its sequences that wait."""

from typing import Any

import pytest

from app.auth.errors import QuotaExceeded
from app.auth.quotas import TenantLimits
from app.config.auth_settings import TenantSettings
from frameworks.scheduling.byte_limit import ByteLimit
from tests.app.inference.generating import generate_request, generating
from tests.frameworks.scheduling.steps.harness import wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import StepGate


def limits_of(**limits: Any) -> TenantLimits:
    """The clock stands still: nothing refills."""
    return TenantLimits(TenantSettings(name="t", **limits), ByteLimit(None), lambda: 0.0)


def charged(limits: TenantLimits) -> float:
    """Return how many tokens were used."""
    assert limits.tokens is not None
    return limits.tokens.reset_s() * limits.tokens.per_minute / 60


@in_loop
@pytest.mark.parametrize("in_pieces", [True, False])
async def test_prompt_and_generated_tokens_are_charged(in_pieces: bool) -> None:
    limits = limits_of(tokens_per_minute=6000)
    async with generating() as harness:
        harness.limits = limits
        request = generate_request("abcde", "xyz", max_tokens=7, n=2)
        async with harness.begin(request, in_pieces=in_pieces) as generation:
            answer = await generation.collect()
    usage = answer.usage
    assert (usage.prompt_tokens, usage.tokens_generated) == (8, 28)
    assert charged(limits) == pytest.approx(8 + 28)


@in_loop
async def test_tokens_of_cancelled_reader_are_charged() -> None:
    limits = limits_of(tokens_per_minute=6000)
    steps = StepGate(5)
    async with generating(steps) as harness:
        harness.limits = limits
        async with harness.begin(generate_request("abc", max_tokens=4000)) as generation:
            await anext(generation)
            await soon(lambda: generation._feed.num_unread + generation.usage.tokens_generated >= 5)  # type: ignore[attr-defined]
        assert charged(limits) == pytest.approx(3 + 5)
        steps.open()
    assert limits.places.inflight == 0


@in_loop
async def test_text_without_tokens_left_never_runs() -> None:
    limits = limits_of(tokens_per_minute=6000)
    async with generating() as harness:
        harness.limits = limits
        async with harness.begin(generate_request("abc", max_tokens=1)) as generation:
            limits.use(600)
            with pytest.raises(QuotaExceeded, match="tokens_per_minute"):
                await harness.collect(generate_request("abc"))
            await generation.collect()
        assert len(harness.models[0].given) == 1
    assert limits.places.inflight == 0


@in_loop
async def test_waiting_sequences_are_bounded_by_tenant() -> None:
    """Four sequences run, three wait; the tenant may have four that wait."""
    gate = Gate()
    limits = limits_of(max_waiting_sequences=4)
    async with generating(gate) as harness:
        first = task(harness.collect(generate_request(*"abcd")))
        await wait_for_arrival(gate)
        harness.limits = limits
        waiting = task(harness.collect(generate_request(*"efg")))
        await soon(lambda: limits.waiting_sequences == 3)
        with pytest.raises(QuotaExceeded, match="max_waiting_sequences: expected at most 4 waiting"):
            await harness.collect(generate_request(*"hi"))
        harness.limits = None
        other = task(harness.collect(generate_request(*"hi")))
        await soon(lambda: harness.manager.slot("m").requests.waiting == 4 + 3 + 2)
        harness.limits = limits
        waiting.cancel()
        await soon(waiting.done)
        assert limits.waiting_sequences == 0
        last = task(harness.collect(generate_request(*"hijklm")))
        await soon(lambda: limits.waiting_sequences == 6)
        gate.open()
        for each in (first, other, last):
            await each
    assert (limits.waiting_sequences, limits.places.inflight) == (0, 0)
