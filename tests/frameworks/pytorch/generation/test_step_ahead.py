"""A device that is late: the next step is given to it before the last one is read, and the texts stay the same."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import ModelFailed, OutOfMemory
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.device.queue import StreamQueue
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.pytorch.generation.generating import GREEDY, ids_of, request, run_out, stepped
from tests.frameworks.pytorch.generation.sampling_cases import AllowedIds
from tests.support.hashing_model import CPU, VOCABULARY_SIZE, hashing_model
from tests.support.kernel_device import IS_INTERPRETED
from tests.support.late_queue import LateQueue
from tests.support.no_memory import memory_ends_at
from tests.support.simulated_graphs import SimulatedGraphs

pytest.importorskip("triton", reason="Triton has packages for Linux only")

pytestmark = [
    pytest.mark.skipif(not IS_INTERPRETED, reason="the simulated device has CPU tensors"),
    # The interpreter computes with numpy, which warns of infinite numbers and NaN.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

COMMON = tuple((5 * i + 1) % VOCABULARY_SIZE for i in range(70))
TENANTS = (DEFAULT_TENANT, Tenant("red"), Tenant("blue"))
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": Sampling(temperature=0.9, seed=11),
    "narrow": Sampling(temperature=1.2, top_k=20, top_p=0.8, min_p=0.02, seed=4),
    "penalised": Sampling(temperature=0, frequency_penalty=3.0),
    "biased": Sampling(temperature=0.8, repetition_penalty=1.3, logit_bias={7: 2.0}, seed=2),
    "scored": Sampling(temperature=0, top_logprobs=2),
    "drawn and scored": Sampling(temperature=0.9, top_p=0.9, presence_penalty=1.0, seed=8, top_logprobs=9),
}


@dataclass(frozen=True)
class Text:
    """A prompt of `shared` common tokens and `length` own ones. `stops`: tokens that end the text."""

    shared: int
    length: int
    max_tokens: int
    sampling: str
    stops: frozenset[int]
    min_tokens: int
    is_constrained: bool
    tenant: int

    def request(self, sequence_id: int, **more: Any) -> SequenceRequest:
        prompt = (*COMMON[: self.shared], *((self.length + 3 * i) % VOCABULARY_SIZE for i in range(self.length)))
        matcher = AllowedIds(*range(0, VOCABULARY_SIZE, 2)) if self.is_constrained else None
        return request(
            sequence_id,
            prompt,
            self.max_tokens,
            SAMPLINGS[self.sampling],
            stop_token_ids=self.stops,
            min_tokens=min(self.min_tokens, self.max_tokens),
            matcher=matcher,
            tenant=TENANTS[self.tenant],
            **more,
        )


@dataclass(frozen=True)
class Arrival:
    text: Text
    at_step: int
    leaves_after: int | None


texts = st.builds(
    Text,
    shared=st.sampled_from([0, 0, 33, 64, 70]),
    length=st.integers(1, 30),
    max_tokens=st.integers(0, 24),
    sampling=st.sampled_from(
        ["greedy", "greedy", "greedy", "drawn", "narrow", "penalised", "biased", "scored", "drawn and scored"]
    ),
    stops=st.sampled_from([frozenset(), frozenset(), frozenset(range(0, VOCABULARY_SIZE, 9))]),
    min_tokens=st.sampled_from([0, 0, 5]),
    is_constrained=st.sampled_from([False] * 7 + [True]),
    tenant=st.sampled_from([0, 0, 0, 1, 2]),
)
arrivals = st.builds(
    Arrival, text=texts, at_step=st.integers(0, 10), leaves_after=st.none() | st.none() | st.integers(1, 15)
)


def model_of(queue: LateQueue | StreamQueue | None, *, blocks: int = 9, graphs: Any = None) -> GeneratingModel:
    """A model whose cache holds hardly more than two longest texts."""
    model = hashing_model(blocks, 4, 40, queue, graphs)
    if isinstance(queue, LateQueue):
        assert model._parts is not None
        assert model._parts.device_sampler is not None
        queue.poisons(*model._parts.device_sampler._slots, *model._parts.device_sampler._scored_slots)
    return model


def texts_of(model: GeneratingModel, coming: list[Arrival]) -> dict[int, list[Any]]:
    """Return the ids of each text with their log probabilities, up to where its caller left."""
    found: dict[int, list[Any]] = {number: [] for number in range(len(coming))}
    clock = 0
    while clock <= 10 or model.has_work:
        for number, arrival in enumerate(coming):
            if arrival.at_step == clock:
                model.add(arrival.text.request(number, arrived_s=float(clock)))
            if arrival.leaves_after is not None and clock == arrival.at_step + arrival.leaves_after:
                model.abort(number)
        result = stepped(model)
        assert result.failed == []
        for token in result.tokens:
            found[token.sequence_id].append((token.token_id, token.logprob, token.top_logprobs))
        clock += 1
    assert model.step().stats.kv_used_bytes == 0
    return found


@settings(max_examples=40)
@given(coming=st.lists(arrivals, min_size=1, max_size=6), random=st.randoms(use_true_random=False))
def test_texts_of_late_device_equal_those_of_cpu(coming: list[Arrival], random: Random) -> None:
    """Under any arrivals, cancellations and preemptions, with eager steps and graphs of all sizes."""
    alone = hashing_model(9, 1, 40, None)
    expected = [texts_of(alone, [replace(each, at_step=0, leaves_after=None)])[0] for each in coming]
    model = model_of(LateQueue(random), graphs=SimulatedGraphs(CPU))
    for number, tokens in texts_of(model, coming).items():
        whole = expected[number]
        assert len(tokens) == len(whole) or coming[number].leaves_after is not None
        for token, wanted in zip(tokens, whole, strict=False):
            assert token[0] == wanted[0]
            assert token[1] == (None if wanted[1] is None else pytest.approx(wanted[1], abs=1e-6))
            assert [each[0] for each in token[2]] == [each[0] for each in wanted[2]]
            assert [each[1] for each in token[2]] == pytest.approx([each[1] for each in wanted[2]], abs=1e-6)


def test_next_step_is_given_before_last_is_read() -> None:
    queue = LateQueue(Random(1))
    model = model_of(queue)
    model.add(request(1, COMMON[:5], 4))
    first = stepped(model)
    assert len(first.tokens) == 1
    assert model._in_flight is not None
    [part] = model._in_flight.plan.parts
    assert part.start == 5
    run_out(model)
    assert queue.num_late


def test_close_waits_for_dropped_step() -> None:
    queue = LateQueue(Random(1))
    model = model_of(queue)
    model.add(request(1, COMMON[:5], 4))
    stepped(model)
    model.abort(1)
    model.close()
    assert not queue._given


def test_last_token_by_length_needs_no_further_step() -> None:
    model = model_of(StreamQueue(CPU))
    model.add(request(1, COMMON[:5], 2))
    stepped(model)
    [token] = stepped(model).tokens
    assert token.finish_reason == "length"
    assert model._in_flight is None


def test_step_after_stop_token_is_dropped() -> None:
    """Its block is free when another text begins."""
    model = model_of(StreamQueue(CPU))
    [first, second, *_] = ids_of(model, request(1, COMMON[:5], 9))[1]
    other = ids_of(model, request(1, COMMON[:7], 9))[1]
    model.add(request(2, COMMON[:5], 9, stop_token_ids=frozenset({second})))
    stepped(model)
    model.add(request(3, COMMON[:7], 9))
    results = run_out(model)
    assert [each.token_id for result in results for each in result.tokens if each.sequence_id == 2] == [second]
    assert [each.token_id for result in results for each in result.tokens if each.sequence_id == 3] == other
    assert first != second


def test_row_without_finite_logits_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(StreamQueue(CPU))
    expected = ids_of(model, request(1, COMMON[:9], 6))[1]
    assert model._parts is not None
    runner: Any = model._parts.runner
    compute = runner.decoder.logits

    def broken(layout: Any) -> torch.Tensor:
        logits: torch.Tensor = compute(layout)
        is_first = layout.tables.lengths == 6 if layout.tables.prefills is None else torch.zeros(len(logits)) > 0
        return torch.where(is_first[:, None], torch.nan, logits)

    monkeypatch.setattr(runner.decoder, "logits", broken)
    model.add(request(2, COMMON[:5], 6))
    model.add(request(3, COMMON[:9], 6))
    results = run_out(model)
    [(sequence_id, error)] = [each for result in results for each in result.failed]
    assert (sequence_id, type(error)) == (2, ModelFailed)
    assert [each.token_id for result in results for each in result.tokens if each.sequence_id == 3] == expected


def test_model_survives_end_of_memory_at_each_allocation() -> None:
    """All texts of the step fail, and nothing else: not the next ones, and no block is lost."""
    model = model_of(StreamQueue(CPU))
    asked = [request(1, COMMON[:40], 3), request(2, COMMON[:50], 3), request(3, COMMON[:3], 3)]
    expected = ids_of(model, *asked)
    number = 0
    has_failed = True
    while has_failed:
        number += 1
        for each in asked:
            model.add(each)
        with memory_ends_at(number) as mode:
            try:
                results = run_out(model)
            except OutOfMemory:
                assert mode.has_failed
                for each in asked:
                    model.abort(each.sequence_id)
            else:
                assert sum(len(result.tokens) for result in results) == 9
        has_failed = mode.has_failed
        model.check_integrity()
        assert model.step().stats.kv_used_bytes == 0
        if number % 7 == 0:
            assert ids_of(model, *asked) == expected
    assert number > 20
    assert ids_of(model, *asked) == expected
