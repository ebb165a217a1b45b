"""Texts with proposed tokens equal those without: choices, log probabilities, ends, constraints and distribution."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.generation.sequences import GeneratedToken, SequenceRequest
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.top_k import TieCheck
from frameworks.pytorch.generation.speculation.speculating import Speculation
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.scheduling.speculation.proposals import PromptLookup
from frameworks.scheduling.speculation.speculator import Speculator
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from frameworks.scheduling.steps.step_cost import StepCost
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    GREEDY,
    load_generating,
    never_stop_proposing,
    request,
    stepped,
    tokens_of,
)
from tests.frameworks.pytorch.generation.sampling_cases import CPU, request_of, state_of
from tests.support.models.causal_folders import END_ID
from tests.support.models.repeating import CYCLE, save_repeating_model

SAMPLINGS = {
    "greedy": GREEDY,
    "scored": Sampling(temperature=0, top_logprobs=3),
    "penalised": Sampling(temperature=0, repetition_penalty=1.05, frequency_penalty=0.1, logit_bias={7: 1.0}),
    "seeded": Sampling(temperature=0.5, seed=11, top_logprobs=1),
    "narrow": Sampling(temperature=0.8, top_k=20, top_p=0.8, min_p=0.02, seed=4),
}


@pytest.fixture(scope="module")
def folder(made_once: FolderMaker) -> Path:
    return made_once(save_repeating_model)


@pytest.fixture(scope="module")
def plain(folder: Path) -> GeneratingModel:
    model: GeneratingModel = load_generating(folder, max_batch_size=8)
    return model


@pytest.fixture(scope="module")
def looking(folder: Path) -> GeneratingModel:
    model: GeneratingModel = load_generating(folder, max_batch_size=8, speculation="lookup")
    never_stop_proposing(model)
    return model


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Return texts of pieces of the model's cycles, some of which a text goes on with."""
    choose = random.Random(seed)
    made = []
    for _ in range(count):
        pieces = [range(first := choose.randrange(250), first + choose.randrange(2, 9)) for _ in range(6)]
        made.append([each for piece in pieces for each in piece])
    return made


def with_counts(model: GeneratingModel, *requests: SequenceRequest) -> tuple[dict[int, list[GeneratedToken]], int, int]:
    """Return the tokens of the sequences, and the numbers of proposed and of accepted tokens."""
    for one in requests:
        model.add(one)
    tokens: dict[int, list[GeneratedToken]] = {one.sequence_id: [] for one in requests}
    proposed = accepted = 0
    while model.has_work:
        result = stepped(model)
        assert result.failed == []
        assert result.num_accepted <= result.num_proposed
        proposed, accepted = proposed + result.num_proposed, accepted + result.num_accepted
        for token in result.tokens:
            tokens[token.sequence_id].append(token)
    return tokens, proposed, accepted


def assert_alike(ours: dict[int, list[GeneratedToken]], theirs: dict[int, list[GeneratedToken]]) -> None:
    """Assert the same tokens; log probabilities differ by roundings of products of other sizes."""
    for number, text in theirs.items():
        assert [each._replace(logprob=None, top_logprobs=()) for each in ours[number]] == [
            each._replace(logprob=None, top_logprobs=()) for each in text
        ]
        for mine, other in zip(ours[number], text, strict=True):
            assert (mine.logprob is None) == (other.logprob is None)
            assert mine.logprob is None or abs(mine.logprob - (other.logprob or 0.0)) < 1e-3
            assert [i for i, _ in mine.top_logprobs] == [i for i, _ in other.top_logprobs]


@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
@pytest.mark.parametrize("callers", [1, 8])
def test_texts_equal_those_without_proposals(
    plain: GeneratingModel, looking: GeneratingModel, sampling: str, callers: int
) -> None:
    total = Counter[str]()
    every_prompt = prompts(32 if sampling == "greedy" else 16)
    for first in range(0, len(every_prompt), callers):
        group = every_prompt[first : first + callers]
        requests = [request(i, prompt, 40, SAMPLINGS[sampling]) for i, prompt in enumerate(group)]
        tokens, proposed, accepted = with_counts(looking, *requests)
        assert_alike(tokens, tokens_of(plain, *requests))
        total.update(proposed=proposed, accepted=accepted)
    assert total["accepted"] > 15, "the model repeats itself"
    assert total["proposed"] > total["accepted"], "some proposals are wrong"


def test_repeating_text_takes_few_steps(looking: GeneratingModel) -> None:
    looking.add(request(1, [*range(CYCLE), 0, 1, 2], 60))
    steps = 0
    while looking.has_work:
        steps += 1
        stepped(looking)
    assert steps < 20


def test_bad_words_are_left_out_of_proposals(plain: GeneratingModel, looking: GeneratingModel) -> None:
    prompt = [*range(CYCLE), 0, 1, 2]
    repeats = [token.token_id for token in tokens_of(plain, request(1, prompt, 12))[1]]
    bad = (tuple(repeats[4:6]), (repeats[9],))
    one = request(1, prompt, 30, bad_sequences=bad)
    tokens, _, accepted = with_counts(looking, one)
    assert_alike(tokens, tokens_of(plain, one))
    text = [token.token_id for token in tokens[1]]
    assert bad[0] not in list(itertools.pairwise(text))
    assert repeats[9] not in text
    assert accepted


def test_text_ends_at_proposed_stop_token(plain: GeneratingModel, looking: GeneratingModel) -> None:
    for stop in range(3, CYCLE, 4):
        one = request(stop, [*range(CYCLE), 0, 1, 2], 40, stop_token_ids=frozenset({stop}))
        tokens, _, _ = with_counts(looking, one)
        assert_alike(tokens, tokens_of(plain, one))
        assert (tokens[stop][-1].token_id, tokens[stop][-1].finish_reason) == (stop, "stop")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9, 10])
def test_proposals_end_at_max_tokens(plain: GeneratingModel, looking: GeneratingModel, max_tokens: int) -> None:
    one = request(1, [*range(CYCLE), 0, 1, 2], max_tokens)
    assert_alike(with_counts(looking, one)[0], tokens_of(plain, one))


def test_constraint_holds_in_proposed_tokens(plain: GeneratingModel, looking: GeneratingModel) -> None:
    """The pattern breaks the cycle that is proposed."""
    accepted = 0
    pattern = r"([a-z]{5}[0-9]){1,9}"
    start = [ord(each) for each in "abcdefghijabcdefghij"]
    for seed in range(6):
        ours, theirs = (
            request(
                1, start, 50, Sampling(temperature=0.7 * (seed > 2), seed=seed),
                stop_token_ids=frozenset({END_ID}), matcher=model.constrain(Constraint("regex", pattern)),
            )
            for model in (looking, plain)
        )  # fmt: skip
        tokens, _, of_text = with_counts(looking, ours)
        assert_alike(tokens, tokens_of(plain, theirs))
        accepted += of_text
    assert accepted > 10


def test_scored_prompts_run_beside_proposals(plain: GeneratingModel, looking: GeneratingModel) -> None:
    requests = [request(i, [*range(CYCLE), 0, 1, 2 + i], 30, prompt_logprobs=i % 2 or None) for i in range(6)]
    assert_alike(with_counts(looking, *requests)[0], tokens_of(plain, *requests))


def test_cached_prefix_of_accepted_tokens_is_right(plain: GeneratingModel, looking: GeneratingModel) -> None:
    """A second text begins with the first one, so that it copies blocks that hold accepted tokens."""
    beginning = [*range(CYCLE), 0, 1, 2]
    first, _, accepted = with_counts(looking, request(1, beginning, 80))
    assert accepted > 30
    longer = [*beginning, *(token.token_id for token in first[1])]
    hits = looking.step().stats.prefix_hit_tokens
    second = request(2, longer, 20)
    assert_alike(with_counts(looking, second)[0], tokens_of(plain, second))
    assert looking.step().stats.prefix_hit_tokens - hits >= 64


def test_sequences_that_leave_are_forgotten(looking: GeneratingModel) -> None:
    assert looking._parts is not None
    assert looking._parts.speculation is not None
    looking.add(request(1, [*range(CYCLE), 0, 1, 2], 60))
    for _ in range(4):
        stepped(looking)
    looking.abort(1)
    speculator: Any = looking._parts.speculation._speculator
    assert (speculator._gains, speculator._undecided, speculator._proposer._texts) == ({}, set(), {})


class TestNearTies:
    def test_two_alike_logits_are_found(self) -> None:
        logits = torch.tensor([[5.0, 5.0 - 1e-6, 1.0], [5.0, 4.9, 1.0], [5.0, 5.0, 5.0], [-3.0, -3.0, -9.0]])
        ties = TieCheck([0, 1, 3])
        Sampler(CPU, 3).sample(logits, [state_of(3, temperature=0)] * 4, ties)
        assert ties.found == {0, 3}

    def test_changed_logits_count(self) -> None:
        ties = TieCheck([0])
        Sampler(CPU, 3).sample(torch.tensor([[5.0, 3.0, 1.0]]), [state_of(3, temperature=0, logit_bias={1: 2.0})], ties)
        assert ties.found == {0}

    def test_tie_is_computed_again_without_proposals(
        self, plain: GeneratingModel, looking: GeneratingModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every third token is taken for a tie."""
        count = itertools.count()
        found = TieCheck.find

        def find(self: TieCheck, *arguments: Any) -> None:
            found(self, *arguments)
            self.found |= {row for row in self._rows if next(count) % 3 == 0}

        monkeypatch.setattr(TieCheck, "find", find)
        requests = [request(i, prompt, 40) for i, prompt in enumerate(prompts(8, 5))]
        tokens, _, accepted = with_counts(looking, *requests)
        assert_alike(tokens, tokens_of(plain, *requests))
        assert accepted > 10


class Confirmed:
    """A scheduler that counts nothing."""

    def confirm(self, sequence: Sequence) -> None:
        """Accept any token."""


def test_distribution_is_that_of_logits() -> None:
    """A chi-square test of three tokens of a Markov chain, of which two are proposed, right or wrong."""
    size, texts = 4, 4000
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(2)) * 1.5
    sampler = Sampler(CPU, size)
    speculation: Any = Speculation(Speculator(PromptLookup(), 8, StepCost(100)), Confirmed())  # type: ignore[arg-type]
    seen = Counter[tuple[int, ...]]()
    states = {number: state_of(size, seed=number) for number in range(texts)}
    generated: dict[int, list[int]] = {number: [] for number in states}
    while unfinished := [number for number, text in generated.items() if len(text) < 3]:
        rows: list[Any] = []
        last: list[int] = []
        proposed = {number: (1, 2)[: 2 - len(generated[number])] for number in unfinished}
        for number in unfinished:
            rows += states[number].ahead(proposed[number])
            last += [(generated[number] or [0])[-1], *proposed[number]]
        sampled = sampler.sample(table[last], rows)
        first = 0
        for number in unfinished:
            sequence = Sequence(request_of(Sampling(seed=0)), 0.0)
            part = StepPart(sequence, 0, 1 + len(proposed[number]), proposed=proposed[number])

            def take(chosen: Any, number: int = number) -> bool:
                assert isinstance(chosen, Sampled)
                generated[number].append(chosen.token_id)
                states[number].accept(chosen.token_id)
                return True

            if part.proposed:
                speculation.take(part, sampled[first : first + part.num_tokens], first, None, take)
            else:
                take(sampled[first])
            first += part.num_tokens
    seen.update(tuple(text) for text in generated.values())
    shares = torch.softmax(table.double(), -1).numpy()
    expected = {
        text: texts * shares[0, text[0]] * shares[text[0], text[1]] * shares[text[1], text[2]]
        for text in itertools.product(range(size), repeat=3)
    }
    common = [text for text, count in expected.items() if count >= 5]
    rare = texts - sum(expected[text] for text in common)
    statistic = sum((seen[text] - expected[text]) ** 2 / expected[text] for text in common)
    statistic += (texts - sum(seen[text] for text in common) - rare) ** 2 / rare
    # Of so many degrees of freedom, one in ten thousand is larger (Wilson and Hilferty, 1931).
    freedom = len(common)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3
    assert seen[1, 2, 1] > 10, "proposals were accepted"
