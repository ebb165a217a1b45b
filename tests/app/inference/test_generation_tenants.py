"""Tenants share a real language model by their weights. Tokens are counted, not seconds.

Each step waits until the loop and all callers have reacted to the one before. A late loop would leave a tenant without
waiting texts, and its places to the other one.
"""

import asyncio
from collections.abc import Iterable
from unittest.mock import patch

import pytest

from app.embedded.copy_tiny_llama import COMMITTED
from frameworks.core.tenants import Tenant
from frameworks.scheduling.steps.tenant_accounting import StepAccounting
from frameworks.scheduling.steps.worker import _StepThread
from tests.support.generating_tenants import TenantsHarness, TextLengths, serving_tenants
from tests.support.loops import HANGS_AFTER_S, in_loop, settle, soon

pytestmark = pytest.mark.extended

HEAVY, LIGHT, THIRD = Tenant("heavy", 3.0), Tenant("light"), Tenant("third")
CALLERS = 24
_SETTLED_TOKENS = 500
UNLIKE: tuple[TextLengths, ...] = ((3, 40), (60, 8), (17, 17), (30, 5), (5, 25))
_SECONDS_PER_TOKEN = 1e-4
_charge = StepAccounting.charge
_process_messages = _StepThread._process_messages


def charge_tokens(charges: StepAccounting, costs: Iterable[tuple[Tenant, float]], _seconds: float) -> None:
    """Charge a step by its tokens: its seconds depend on what else the machine does."""
    known = list(costs)
    _charge(charges, known, _SECONDS_PER_TOKEN * sum(cost for _, cost in known))


def process_in_turn(thread: _StepThread) -> bool:
    """Wait for the loop before each step."""
    if thread._active:
        asyncio.run_coroutine_threadsafe(settle(), thread._loop).result(HANGS_AFTER_S)
    return _process_messages(thread)


async def shared(harness: TenantsHarness, tokens: int, tenants: tuple[Tenant, ...]) -> dict[str, int]:
    """Return the generated tokens by tenant, of at least so many, while all tenants are busy.

    The tenants do not arrive at once: what the first one receives alone is no share. So counting begins when each of
    them has received tokens, and some more have followed.
    """
    before: dict[str, int] = {}
    seen: dict[str, int] = {}

    def is_over() -> bool:
        delivered = harness.delivered_tokens()
        total = sum(delivered.values())
        if not before:
            if total >= _SETTLED_TOKENS and len(delivered) == len(tenants):
                before.update(delivered)
        elif not seen and total >= sum(before.values()) + tokens:
            seen.update({name: count - before[name] for name, count in delivered.items()})
        return bool(seen)

    await asyncio.gather(*(harness.flood(tenant, CALLERS, UNLIKE, is_over) for tenant in tenants))
    return seen


@patch.object(StepAccounting, "charge", charge_tokens)
@patch.object(_StepThread, "_process_messages", process_in_turn)
@in_loop
async def test_generated_tokens_follow_tenant_weights() -> None:
    async with serving_tenants(COMMITTED, max_batch_size=8) as harness:
        tokens = await shared(harness, 3000, (HEAVY, LIGHT))
    assert tokens["heavy"] / tokens["light"] == pytest.approx(3, rel=0.05)


@in_loop
async def test_rare_caller_is_served_beside_flood() -> None:
    """Eight places are held by long texts. The third tenant's text is done before any of those."""
    async with serving_tenants(COMMITTED, max_batch_size=8) as harness:
        flood = asyncio.create_task(harness.flood(LIGHT, 8, [(5, 400)], lambda: harness.tokens["third"] >= 10))
        await soon(lambda: harness.tokens["light"] >= 8 * 20)
        before = harness.tokens["light"]
        await harness.generate(THIRD, (5, 6, 7), 10)
        assert harness.tokens["light"] - before < 8 * 60
        await flood
    assert harness.tokens["light"] == 8 * 400
