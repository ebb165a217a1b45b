"""Texts get proposals when their steps are measured, as many as they may have, and as earlier texts accepted them."""

from collections.abc import Sequence as Rows

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.speculation.proposals import Wish
from frameworks.scheduling.speculation.speculator import Speculator
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost


class Ones:
    """Propose the token 1."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def propose(self, wishes: Rows[Wish]) -> list[tuple[int, ...]]:
        return [(1,) * wish.most for wish in wishes]

    def forget(self, sequence_id: int) -> None:
        self.forgotten.append(sequence_id)


def decode_of(sequence_id: int, max_tokens: int = 100) -> StepPart:
    sequence = Sequence(SequenceRequest(sequence_id, (7, 8), max_tokens, Sampling(), priority=5), 0.0)
    sequence.num_computed_tokens = 1
    return StepPart(sequence, 1, 1)


def measured(proposer: Ones | None = None) -> Speculator:
    cost = StepCost(100)
    cost.learn(1, 0, 1.0)
    return Speculator(proposer or Ones(), 8, cost)


def test_nothing_is_proposed_before_plain_step() -> None:
    plan = StepPlan(parts=[decode_of(1)])
    assert Speculator(Ones(), 8, StepCost(100)).propose(plan) == {}
    assert measured().propose(plan) == {1: (1,) * 8}


def test_last_tokens_of_text_are_not_exceeded() -> None:
    parts = [decode_of(1, 4), decode_of(2, 1), decode_of(3, 0)]
    assert measured().propose(StepPlan(parts=parts)) == {1: (1, 1, 1)}, "the step itself gives one more"


def test_parts_of_prompts_get_no_proposals() -> None:
    sequence = decode_of(1).sequence
    sequence.num_computed_tokens = 0
    assert measured().propose(StepPlan(parts=[StepPart(sequence, 0, 1), StepPart(sequence, 0, 2)])) == {}


def test_undecided_text_pauses_for_one_step() -> None:
    speculator, part = measured(), decode_of(1)
    speculator.propose(StepPlan(parts=[part]))
    speculator.learn(StepPart(part.sequence, 1, 3, proposed=(1, 1)), 1, is_undecided=True)
    assert speculator.propose(StepPlan(parts=[part])) == {}
    assert speculator.propose(StepPlan(parts=[part])) != {}


def test_text_begins_with_earlier_acceptance_rate() -> None:
    speculator = measured()
    speculator.learn_step(1, 8, 3.0)
    assert speculator.propose(StepPlan(parts=[decode_of(1)])) != {}
    wrong = decode_of(2).sequence
    for _ in range(100):
        speculator.learn(StepPart(wrong, 1, 9, proposed=(1,) * 8), 0, is_undecided=False)
    assert speculator.propose(StepPlan(parts=[decode_of(3, max_tokens=30)])) == {}
    for _ in range(100):
        speculator.learn(StepPart(wrong, 1, 9, proposed=(1,) * 8), 8, is_undecided=False)
    assert speculator.propose(StepPlan(parts=[decode_of(4)])) != {}


def test_ended_text_is_forgotten() -> None:
    proposer = Ones()
    speculator, part = measured(proposer), decode_of(1)
    speculator.propose(StepPlan(parts=[part]))
    speculator.forget(1)
    speculator.learn(StepPart(part.sequence, 1, 9, proposed=(1,) * 8), 8, is_undecided=False)
    assert (speculator._gains, speculator._undecided, proposer.forgotten) == ({}, set(), [1])


def test_cost_after_prompt_is_not_learned() -> None:
    speculator, decode, sequence = measured(), decode_of(1), decode_of(2).sequence
    speculator.propose(StepPlan(parts=[StepPart(sequence, 0, 2)]))
    speculator.propose(StepPlan(parts=[decode]))
    speculator.learn_step(1, 8, 100.0)
    assert speculator.propose(StepPlan(parts=[decode])) != {}
    speculator.learn_step(1, 8, 100.0)
    assert speculator.propose(StepPlan(parts=[decode])) == {}


def test_texts_save_time_for_a_trial() -> None:
    speculator = measured()
    speculator.propose(StepPlan(parts=[decode_of(1)]))
    speculator.learn_step(1, 8, 9.0)  # so the trial of two tokens costs two decodes
    plan = StepPlan(parts=[decode_of(2)])
    assert all(speculator.propose(plan) == {} for _ in range(190))
    assert speculator.propose(StepPlan(parts=[decode_of(3)])) == {}, "1.9 decodes are saved"
    assert all(speculator.propose(plan) == {} for _ in range(9))
    assert speculator.propose(StepPlan(parts=[decode_of(4)])) == {4: (1, 1)}
    assert speculator.propose(StepPlan(parts=[decode_of(5)])) == {}, "the trial used what was saved"
