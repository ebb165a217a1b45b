"""Under any arrivals, cancellations, failures and preemptions each text equals the text alone."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    GREEDY,
    alone,
    ids_of,
    load_generating,
    never_stop_proposing,
    request,
    run_out,
    stepped,
)
from tests.support.models.causal_folders import END_ID, save_causal_model

COMMON = tuple((5 * i + 1) % 250 for i in range(90))
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": Sampling(temperature=0.9, seed=11),
    "narrow": Sampling(temperature=1.2, top_k=20, top_p=0.8, min_p=0.02, seed=4),
    "penalised": Sampling(temperature=0, repetition_penalty=1.4, frequency_penalty=0.5, logit_bias={7: 2.0}),
}


@dataclass(frozen=True)
class Text:
    """Return a prompt of `shared` common tokens and `length` own tokens from `first` on."""

    shared: int
    length: int
    first: int
    max_tokens: int
    sampling: str
    is_constrained: bool = False

    def request(self, model: GeneratingModel, sequence_id: int, **more: Any) -> SequenceRequest:
        prompt = (*COMMON[: self.shared], *((self.first + 3 * i) % 250 for i in range(self.length)))
        if self.is_constrained:
            more["matcher"] = model.constrain(Constraint("regex", "[a-f]{3}( [0-9]+)?"))
            more["stop_token_ids"] = frozenset({END_ID})
        return request(sequence_id, prompt, self.max_tokens, SAMPLINGS[self.sampling], **more)


@dataclass(frozen=True)
class Arrival:
    text: Text
    at_step: int
    priority: int
    leaves_after: int | None


texts = st.builds(
    Text,
    shared=st.sampled_from([0, 20, 33, 64, 90]),
    length=st.integers(1, 40),
    first=st.integers(0, 2),
    max_tokens=st.integers(1, 40),
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    is_constrained=st.sampled_from([False, False, False, True]),
)
arrivals = st.builds(
    Arrival,
    text=texts,
    at_step=st.integers(0, 12),
    priority=st.integers(1, 9),
    leaves_after=st.none() | st.integers(1, 25),
)


class Reference:
    """Return the tokens of texts that run alone, each computed once."""

    def __init__(self, model: GeneratingModel) -> None:
        self.model = model
        self._known: dict[Text, list[int]] = {}

    def of(self, text: Text) -> list[int]:
        if text not in self._known:
            self._known[text] = alone(self.model, text.request(self.model, 1))
        return self._known[text]


@pytest.fixture(scope="module")
def reference(made_once: FolderMaker) -> Reference:
    return Reference(load_generating(made_once(save_causal_model), max_batch_size=1))


@pytest.fixture(scope="module", params=["none", "lookup"])
def small(request: pytest.FixtureRequest, made_once: FolderMaker) -> GeneratingModel:
    """The cache holds hardly more than one longest text."""
    model: GeneratingModel = load_generating(
        made_once(save_causal_model),
        blocks=7,
        max_batch_size=5,
        max_num_batched_tokens=24,
        speculation=request.param,
    )
    if request.param != "none":
        never_stop_proposing(model)
    return model


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(coming=st.lists(arrivals, min_size=1, max_size=7), forgets=st.booleans())
def test_text_equals_text_alone(
    reference: Reference, small: GeneratingModel, coming: list[Arrival], forgets: bool
) -> None:
    assert small._parts is not None
    if forgets:
        small._parts.scheduler.clear_cache()
    given_ids: dict[int, list[int]] = {number: [] for number in range(len(coming))}
    begun: list[int] = []
    clock = 0
    while clock <= 12 or small.has_work:
        for number, arrival in enumerate(coming):
            if arrival.at_step == clock:
                small.add(arrival.text.request(small, number, priority=arrival.priority, arrived_s=float(clock)))
            if arrival.leaves_after is not None and clock == arrival.at_step + arrival.leaves_after:
                small.abort(number)
        result = stepped(small)
        assert result.failed == []
        begun += [number for number, _ in result.begun]
        for token in result.tokens:
            given_ids[token.sequence_id].append(token.token_id)
        clock += 1
    assert len(begun) == len(set(begun))
    assert small.step().stats.kv_used_bytes == 0
    for number, arrival in enumerate(coming):
        expected = reference.of(arrival.text)
        if arrival.leaves_after is None:
            assert given_ids[number] == expected
        else:
            assert given_ids[number] == expected[: len(given_ids[number])]


@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
def test_preempted_texts_continue(reference: Reference, small: GeneratingModel, sampling: str) -> None:
    """Sampled texts too: each sequence has its own random numbers."""
    wanted = [Text(0, 30, first, 40, sampling) for first in range(4)]
    before = small.step().stats.preemptions
    together = ids_of(small, *(text.request(small, number) for number, text in enumerate(wanted)))
    assert small.step().stats.preemptions > before
    assert together == {number: reference.of(text) for number, text in enumerate(wanted)}


def test_choices_share_only_their_prompt(reference: Reference, small: GeneratingModel) -> None:
    prompt = COMMON[:70]
    siblings = [request(i, prompt, 12, Sampling(temperature=1.5, seed=i)) for i in range(5)]
    assert small._parts is not None
    small._parts.scheduler.clear_cache()
    for one in siblings:
        small.add(one)
    results = run_out(small)
    assert sorted(known for result in results for _, known in result.begun) == [0, 64, 64, 64, 64]
    texts: dict[int, list[int]] = {i: [] for i in range(5)}
    for token in (token for result in results for token in result.tokens):
        texts[token.sequence_id].append(token.token_id)
    for i in range(5):
        assert alone(reference.model, request(1, prompt, 12, Sampling(temperature=1.5, seed=i))) == texts[i]
    assert len({tuple(text) for text in texts.values()}) == 5
