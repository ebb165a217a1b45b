"""Measure how tenants share a language model, in this process and without HTTP."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple
from unittest.mock import patch

from frameworks.core.tenants import Tenant
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.loading import generator as loading
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.step_cost import StepCost
from tests.frameworks.scheduling.steps.one_tenant import OneTenantScheduler
from tests.support.generating_tenants import TenantsHarness, TextLengths, serving_tenants
from tools.bench.shared.language_models import SMALL, save_llama
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.table import Row, percent

_CALLERS = 32
_SECONDS = 10.0
_BEFORE_S = 2.0
_ROUNDS = 3
_ALONE_ROUNDS = 15
_ALONE_SECONDS = 3.0
_HEAVY, _LIGHT, _THIRD = Tenant("heavy", 3.0), Tenant("light"), Tenant("third")
_UNLIKE: tuple[TextLengths, ...] = ((10, 120), (150, 10), (40, 60), (80, 30), (20, 200), (5, 5))
_SHORT: TextLengths = (20, 1)


def measure_fairness_generation(folder: Path) -> list[Row]:
    """Measure the shares of two floods, the delay of a third tenant beside them, and the cost for a single tenant."""
    llama = save_llama(folder / "fairness", SMALL)
    gc.disable()
    try:
        shares = [_run(llama, _shares) for _ in range(_ROUNDS)]
        delays = _run(llama, _delays)
        alone = in_turn(
            {
                "now": lambda: _run(llama, _tokens_alone),
                "before": lambda: _run(llama, _tokens_alone, _without_tenants()),
            },
            _ALONE_ROUNDS,
        )
    finally:
        gc.enable()
    planned = in_turn(
        {"now": lambda: _planning_us(StepScheduler), "before": lambda: _planning_us(OneTenantScheduler)}, 9
    )
    return [
        _share_row(shares),
        _delay_row(delays),
        _alone_row(alone["now"], alone["before"]),
        Row(
            f"CPU time to plan a step of {_CALLERS} decodes of one tenant",
            f"{median(planned['now']):.0f} µs",
            compared=f"{median(planned['before']):.0f} µs without tenants",
        ),
    ]


def _without_tenants() -> AbstractContextManager[Any]:
    return patch.object(loading, "StepScheduler", OneTenantScheduler)


def _run(
    llama: Path, measure: Callable[[TenantsHarness], Any], patched: AbstractContextManager[Any] | None = None
) -> Any:
    async def run() -> Any:
        async with serving_tenants(llama) as harness:
            return await measure(harness)

    with patched or nullcontext():
        return asyncio.run(run())


def _planning_us(make: type[StepScheduler] | type[OneTenantScheduler]) -> float:
    """Return the microseconds of a step's plan and of its record."""
    scheduler = make(BlockPool(4096, 16), StepCost(512), _CALLERS, 512)
    for number in range(_CALLERS):
        scheduler.add(SequenceRequest(number, (number,) * 20, 10**6, Sampling(), priority=5, arrived_s=float(number)))
    steps, started_s = 400, 0.0
    for step in range(steps + 50):
        if step == 50:
            started_s = time.process_time()
        plan = scheduler.plan()
        scheduler.advance(plan)
        for part in plan.parts:
            if part.completes:
                part.sequence.token_ids.append(number)
    return (time.process_time() - started_s) / steps * 1e6


async def _shares(harness: TenantsHarness) -> Counter[str]:
    """Return the generated tokens of both tenants."""
    floods = asyncio.gather(*_floods(harness, (_HEAVY, _LIGHT), time.perf_counter() + _BEFORE_S + _SECONDS))
    await asyncio.sleep(_BEFORE_S)
    before = harness.tokens.copy()
    await asyncio.sleep(_SECONDS)
    counted = harness.tokens - before
    await floods
    return counted


class _Delays(NamedTuple):
    """Seconds until the third tenant's first token, beside the floods and alone.

    `steps`: of the model that ended meanwhile. `steps_s`: their seconds; the first may have begun before the request.
    """

    beside_s: list[float]
    alone_s: list[float]
    steps: list[int]
    steps_s: list[float]


async def _delays(harness: TenantsHarness) -> _Delays:
    alone = [await harness.generate(_THIRD, harness.prompt(_SHORT[0]), _SHORT[1]) for _ in range(50)]
    beside: list[float] = []
    steps: list[int] = []
    steps_s: list[float] = []
    ends_s = time.perf_counter() + _BEFORE_S + 3 * _SECONDS

    async def ask() -> None:
        await asyncio.sleep(_BEFORE_S)
        for _ in range(int(3 * _SECONDS)):
            await asyncio.sleep(1.0)
            before = harness.step_seconds()
            beside.append(await harness.generate(_THIRD, harness.prompt(_SHORT[0]), _SHORT[1]))
            after = harness.step_seconds()
            steps.append(after[0] - before[0])
            steps_s.append(after[1] - before[1])

    floods = asyncio.gather(*_floods(harness, (_HEAVY, _LIGHT), ends_s))
    await ask()
    await floods
    return _Delays(beside, alone, steps, steps_s)


async def _tokens_alone(harness: TenantsHarness) -> float:
    """Return the tokens of one tenant per second of CPU time, which other processes influence least."""
    started_s = time.process_time()
    await asyncio.gather(*_floods(harness, (_LIGHT,), time.perf_counter() + _ALONE_SECONDS))
    return harness.tokens.total() / (time.process_time() - started_s)


def _floods(harness: TenantsHarness, tenants: Sequence[Tenant], ends_s: float) -> list[Any]:
    return [harness.flood(tenant, _CALLERS, _UNLIKE, lambda: time.perf_counter() >= ends_s) for tenant in tenants]


def _share_row(rounds: list[Counter[str]]) -> Row:
    ratios = [counted["heavy"] / counted["light"] for counted in rounds]
    return Row(
        f"two tenants of weights 3 and 1, each with {_CALLERS} callers and texts of unlike lengths to the "
        f"{SMALL.label}: ratio of their tokens over {_SECONDS:.0f} s",
        f"{median(ratios):.2f}",
        "2.85 to 3.15",
        f"rounds {', '.join(f'{each:.2f}' for each in ratios)}; "
        f"{mean(counted.total() for counted in rounds) / _SECONDS:.0f} tokens/s together",
    )


def _delay_row(delays: _Delays) -> Row:
    """Steps are of unlike lengths, so each request is compared with the steps that it had to wait for."""
    alone_s = median(delays.alone_s)
    more_s = max(beside_s - steps_s for beside_s, steps_s in zip(delays.beside_s, delays.steps_s, strict=True))
    return Row(
        "a third tenant that asks once a second beside both: first token",
        f"{max(delays.steps)} steps at most, and {max(0.0, more_s) * 1e3:.1f} ms",
        f"≤ 2 steps, and {alone_s * 1e3:.1f} ms (alone)",
        f"median {median(delays.beside_s) * 1e3:.1f} ms, longest {max(delays.beside_s) * 1e3:.1f} ms; "
        f"two steps {median(delays.steps_s) * 1e3:.1f} ms, longest {max(delays.steps_s) * 1e3:.1f} ms",
    )


def _alone_row(now: list[float], before: list[float]) -> Row:
    return Row(
        f"one tenant with {_CALLERS} callers, against a scheduler without tenants",
        percent(ratio(now, before)),
        "≥ 98 %",
        f"{median(now):.0f} against {median(before):.0f} tokens per second of CPU time",
    )
