"""The comparison of two versions' answers."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from app.inference.context import RunContext
from app.inference.shadowing import ShadowTraffic, is_same
from frameworks.core.tenants import Tenant
from frameworks.models.versions.traffic import Share
from frameworks.text.tokens import DetokenizeAnswer, TokenAnswer, TokenizeAnswer
from frameworks.types import Answer, ClassifyAnswer, EmbedAnswer, MultiVectorAnswer, ScoreAnswer
from tests.support.batch_models import FakeRegistry, numbers
from tests.support.loops import in_loop, soon
from tests.support.managing import serving

ROWS = np.array([[0.6, 0.8]], np.float32)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"y": ROWS}, {"y": ROWS * 1.0005}, True),
        ({"y": ROWS}, {"y": ROWS * 1.01}, False),
        ({"y": ROWS}, {"z": ROWS}, False),
        (EmbedAnswer(ROWS, 1), EmbedAnswer(ROWS * 1.0005, 2), True),
        (EmbedAnswer(ROWS, 1), EmbedAnswer(ROWS * 1.01, 1), False),
        (MultiVectorAnswer([ROWS], 1), MultiVectorAnswer([ROWS * 1.0005], 1), True),
        (MultiVectorAnswer([ROWS], 1), MultiVectorAnswer([ROWS * 1.01], 1), False),
        (MultiVectorAnswer([ROWS], 1), MultiVectorAnswer([ROWS, ROWS], 1), False),
        (ClassifyAnswer([[("a", 0.5), ("b", 0.5)]]), ClassifyAnswer([[("b", 0.5), ("a", 0.5)]]), True),
        (ClassifyAnswer([[("a", 0.5)]]), ClassifyAnswer([[("a", 0.6)]]), False),
        (ScoreAnswer([0.5, -0.5], 1), ScoreAnswer([0.5001, -0.5], 2), True),
        (ScoreAnswer([0.5], 1), ScoreAnswer([0.6], 1), False),
        (ScoreAnswer([0.5], 1), ScoreAnswer([0.5, 0.5], 1), False),
        (TokenizeAnswer([1, 2], None, 7), TokenizeAnswer([1, 2], None, 7), True),
        (TokenizeAnswer([1, 2], None, 7), TokenizeAnswer([1, 3], None, 7), False),
        (DetokenizeAnswer("a"), DetokenizeAnswer("b"), False),
        (EmbedAnswer(ROWS, 1), ScoreAnswer([0.5], 1), False),
    ],
)
def test_shadow_outcome_compares_answers(one: Answer | TokenAnswer, other: Answer | TokenAnswer, same: bool) -> None:
    assert is_same(one, other) == same


@in_loop
async def test_copy_runs_for_tenant_of_request() -> None:
    tenants: list[Tenant] = []

    class Service:
        async def infer(self, context: RunContext, _: object) -> Answer:
            tenants.append(context.permit.tenant)
            return {"y": ROWS}

    outcomes: Counter[tuple[str, str, str]] = Counter()
    service: Any = Service()
    shadowing = ShadowTraffic(service, outcomes)
    async with serving(FakeRegistry()) as manager:
        slot = manager.slot("m")
        slot.shadow = Share(slot.version, 100)
        tenant = Tenant("one")
        shadowing.copy(slot, numbers(1), {"y": ROWS}, tenant)
        await soon(lambda: not shadowing.copies)
        assert tenants == [tenant]
        assert outcomes == {("m", slot.version, "same"): 1}
        await shadowing.close()
