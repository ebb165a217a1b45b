"""Texts with a draft model equal those without: choices, seeds, constraints, memory that runs out, and distribution."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.errors import ModelFailed
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.speculation.drafting import DraftProposer
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    GREEDY,
    load_generating,
    never_stop_proposing,
    request,
    run_out,
    stepped,
    tokens_of,
)
from tests.frameworks.pytorch.generation.test_speculation import SAMPLINGS, assert_alike, prompts, with_counts
from tests.support.models.causal_folders import CONTEXT_TOKENS, END_ID
from tests.support.models.lora_folders import Lora, save_lora
from tests.support.models.repeating import CYCLE, save_repeating_model

FREE = Sampling(temperature=0.9, top_p=0.98, top_logprobs=1, seed=1)


def proposer_of(model: GeneratingModel) -> DraftProposer:
    assert model._parts is not None
    assert model._parts.speculation is not None
    proposer = model._parts.speculation._draft
    assert proposer is not None
    return proposer


@pytest.fixture(scope="module")
def folder(made_once: FolderMaker) -> Path:
    return made_once(save_repeating_model)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose texts repeat less: some of its tokens are wrong."""
    return save_repeating_model(tmp_path_factory.mktemp("draft"), loudness=12.0)


@pytest.fixture(scope="module")
def plain(folder: Path) -> GeneratingModel:
    model: GeneratingModel = load_generating(folder, max_batch_size=8)
    return model


def drafting(folder: Path, draft_folder: Path, **entry: Any) -> GeneratingModel:
    model: GeneratingModel = load_generating(folder, max_batch_size=8, draft_model=draft_folder, **entry)
    never_stop_proposing(model)
    return model


@pytest.fixture(scope="module")
def drafted(folder: Path, draft_folder: Path) -> GeneratingModel:
    return drafting(folder, draft_folder)


@pytest.mark.extended
@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
@pytest.mark.parametrize("callers", [1, 8])
def test_texts_equal_those_without_draft_model(
    plain: GeneratingModel, drafted: GeneratingModel, sampling: str, callers: int
) -> None:
    total = Counter[str]()
    for first in range(0, 16, callers):
        group = prompts(16)[first : first + callers]
        requests = [request(i, prompt, 40, SAMPLINGS[sampling]) for i, prompt in enumerate(group)]
        tokens, proposed, accepted = with_counts(drafted, *requests)
        assert_alike(tokens, tokens_of(plain, *requests))
        total.update(proposed=proposed, accepted=accepted)
    assert 300 < total["accepted"] < total["proposed"]


def test_counts_are_those_of_each_text(drafted: GeneratingModel) -> None:
    for number, prompt in enumerate(prompts(3)):
        drafted.add(request(number, prompt, 20))
    by_text: Counter[int] = Counter()
    proposed = accepted = 0
    for result in run_out(drafted):
        assert result.num_proposed == sum(each[1] for each in result.speculated)
        assert result.num_accepted == sum(each[2] for each in result.speculated)
        assert all(right <= count for _, count, right in result.speculated)
        by_text.update({number: right for number, _, right in result.speculated})
        proposed, accepted = proposed + result.num_proposed, accepted + result.num_accepted
    assert set(by_text) == {0, 1, 2}
    assert by_text.total() == accepted


def test_same_model_proposes_right_tokens(folder: Path) -> None:
    """Also beyond blocks, and for texts that are drawn, with a seed or without."""
    model = drafting(folder, folder)
    for sampling, is_seeded in ((GREEDY, True), (Sampling(temperature=0.7, seed=5), True), (FREE, False)):
        requests = [
            request(i, prompt, 60, replace(sampling, seed=i), is_seeded=is_seeded)
            for i, prompt in enumerate(prompts(4))
        ]
        _, proposed, accepted = with_counts(model, *requests)
        # The logits of one token and of several differ by roundings.
        assert accepted >= 0.98 * proposed
        assert accepted > 150


def test_text_ends_at_proposed_stop_token(plain: GeneratingModel, drafted: GeneratingModel) -> None:
    for stop in range(3, CYCLE, 4):
        for sampling in (GREEDY, Sampling(temperature=0.3, seed=stop)):
            one = request(stop, [*range(CYCLE), 0, 1, 2], 40, sampling, stop_token_ids=frozenset({stop}))
            tokens, _, _ = with_counts(drafted, one)
            assert_alike(tokens, tokens_of(plain, one))
            assert (tokens[stop][-1].token_id, tokens[stop][-1].finish_reason) == (stop, "stop")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10])
def test_proposals_end_at_max_tokens(plain: GeneratingModel, drafted: GeneratingModel, max_tokens: int) -> None:
    one = request(1, [*range(CYCLE), 0, 1, 2], max_tokens)
    assert_alike(with_counts(drafted, one)[0], tokens_of(plain, one))


def test_constraint_holds_in_proposed_tokens(plain: GeneratingModel, drafted: GeneratingModel) -> None:
    accepted = 0
    pattern = r"([a-z]{5}[0-9]){1,9}"
    start = [ord(each) for each in "abcdefghijabcdefghij"]
    for seed in range(6):
        ours, theirs = (
            request(
                1, start, 50, Sampling(temperature=0.7 * (seed > 2), seed=seed), is_seeded=False,
                stop_token_ids=frozenset({END_ID}), matcher=model.constrain(Constraint("regex", pattern)),
            )
            for model in (drafted, plain)
        )  # fmt: skip
        tokens, _, of_text = with_counts(drafted, ours)
        assert_alike(tokens, tokens_of(plain, theirs))
        accepted += of_text
    assert accepted > 20


def test_bad_words_and_suppressed_ends_are_kept(plain: GeneratingModel, drafted: GeneratingModel) -> None:
    prompt = [*range(CYCLE), 0, 1, 2]
    one = request(
        1, prompt, 30, Sampling(temperature=0.4, seed=2), bad_sequences=((5, 6), (9,)),
        stop_token_ids=frozenset({4}), min_tokens=12,
    )  # fmt: skip
    tokens, _, accepted = with_counts(drafted, one)
    assert_alike(tokens, tokens_of(plain, one))
    assert accepted


@pytest.mark.extended
def test_preempted_texts_go_on_with_their_draft(plain: GeneratingModel, folder: Path, draft_folder: Path) -> None:
    """Six texts of up to four blocks share nine."""
    model = drafting(folder, draft_folder, kv_cache_bytes=9 * 32 * 512)
    requests = [request(i, prompt, 60, SAMPLINGS["seeded"]) for i, prompt in enumerate(prompts(6, 3))]
    tokens, _, accepted = with_counts(model, *requests)
    assert stepped(model).stats.preemptions > 0
    assert_alike(tokens, tokens_of(plain, *requests))
    assert accepted > 100


def test_cancelled_texts_leave_nothing(drafted: GeneratingModel) -> None:
    for number in range(4):
        drafted.add(request(number, [*range(CYCLE), number], 60, FREE, is_seeded=False))
    for _ in range(4):
        stepped(drafted)
    assert len(proposer_of(drafted)._sequences) == 4
    for number in range(4):
        drafted.abort(number)
        drafted.check_integrity()
    texts = proposer_of(drafted)._sequences
    assert (len(texts), texts.pool.num_used) == (0, 0)


def test_prompt_prefix_is_read_once(drafted: GeneratingModel) -> None:
    prompt = [*range(CYCLE)] * 5
    with_counts(drafted, request(1, prompt, 20))
    copied: list[int] = []
    runner: Any = proposer_of(drafted)._model.runner
    computed = runner.logits

    def logits(plan: Any) -> torch.Tensor:
        copied.extend(copy.destination for copy in plan.copies)
        found: torch.Tensor = computed(plan)
        return found

    runner.logits = logits
    try:
        with_counts(drafted, request(2, [*prompt, 7], 20))
    finally:
        del runner.logits
    assert len(copied) >= len(prompt) // 32


def test_long_prompts_are_read_in_parts(
    plain: GeneratingModel, folder: Path, draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drafting(folder, draft_folder)
    monkeypatch.setattr(DraftProposer, "_max_prefill_tokens", lambda self, num_sequences: 48)
    requests = [request(i, [*prompt, *[*range(CYCLE)] * 4], 60) for i, prompt in enumerate(prompts(4))]
    tokens, _, accepted = with_counts(model, *requests)
    assert_alike(tokens, tokens_of(plain, *requests))
    assert accepted > 50


def test_context_of_draft_model_bounds_proposals(plain: GeneratingModel, folder: Path, tmp_path: Path) -> None:
    """It proposes nothing for a text that is longer."""
    shorter = save_repeating_model(tmp_path, max_position_embeddings=64)
    model = drafting(folder, shorter)
    one = request(1, [*range(CYCLE)], CONTEXT_TOKENS - CYCLE)
    tokens, proposed, accepted = with_counts(model, one)
    assert_alike(tokens, tokens_of(plain, one))
    assert len(tokens[1]) == CONTEXT_TOKENS - CYCLE
    assert 25 < accepted <= proposed <= 64 - CYCLE


@pytest.mark.parametrize("vocabulary_size", [280, 320])
def test_padded_vocabularies_may_differ(
    plain: GeneratingModel, folder: Path, tmp_path: Path, vocabulary_size: int
) -> None:
    model = drafting(folder, save_repeating_model(tmp_path, vocab_size=vocabulary_size))
    requests = [
        request(1, [*range(CYCLE)], 30),
        request(2, [*range(CYCLE)], 30, Sampling(temperature=0.5, seed=1)),
        request(3, [290, 291, 292], 10),
    ]
    tokens, _, accepted = with_counts(model, *requests)
    assert_alike(tokens, tokens_of(plain, *requests))
    assert accepted > 20
    free = [request(i, [*range(CYCLE)], 20, FREE, is_seeded=False) for i in range(3)]
    assert with_counts(model, *free)[2] > 10


def test_adapter_of_model_has_the_base_draft(folder: Path, draft_folder: Path, tmp_path: Path) -> None:
    adapter = save_lora(tmp_path / "red", Lora(1), transformers_model(folder))
    model = drafting(folder, draft_folder)
    loaded = model.load_adapter("red", adapter)
    bare: GeneratingModel = load_generating(folder, max_batch_size=8)
    bare_loaded = bare.load_adapter("red", adapter)
    for sampling in (GREEDY, SAMPLINGS["seeded"]):
        ours, theirs = (
            [request(i, prompt, 30, sampling, adapter_id=number * (i % 2)) for i, prompt in enumerate(prompts(4))]
            for number in (loaded.number, bare_loaded.number)
        )
        tokens, _, accepted = with_counts(model, *ours)
        assert_alike(tokens, tokens_of(bare, *theirs))
        assert accepted > 20


def transformers_model(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_memory_error_of_draft_ends_proposals(
    plain: GeneratingModel, folder: Path, draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drafting(folder, draft_folder)
    one = request(1, [*range(CYCLE), 0, 1, 2], 30)
    model.add(one)
    for _ in range(3):
        stepped(model)
    runner: Any = proposer_of(model)._model.runner

    def fail(plan: Any) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(runner, "logits", fail)
    rest = [token.token_id for result in run_out(model) for token in result.tokens]
    whole = [token.token_id for token in tokens_of(plain, one)[1]]
    assert rest
    assert rest == whole[-len(rest) :]
    monkeypatch.undo()
    assert with_counts(model, request(2, [*range(CYCLE), 0, 1], 20))[1] == 0


def test_other_errors_of_draft_are_raised(folder: Path, draft_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = drafting(folder, draft_folder)
    model.add(request(1, [*range(CYCLE)], 30))
    stepped(model)
    stepped(model)

    def fail(plan: Any) -> torch.Tensor:
        raise ModelFailed("a bug")

    monkeypatch.setattr(proposer_of(model)._model.runner, "logits", fail)
    with pytest.raises(ModelFailed, match="a bug"):
        run_out(model)


def test_draft_without_gain_is_left_out(folder: Path, draft_folder: Path) -> None:
    """Each proposed token costs as much as a step."""
    model = drafting(folder, draft_folder)
    assert model._parts is not None
    assert model._parts.speculation is not None
    cost: Any = model._parts.speculation._speculator._cost
    cost.of_token = lambda texts, proposed: 1.0
    _, proposed, _ = with_counts(model, request(1, [*range(CYCLE)], 150))
    assert proposed <= 2, "a trial after a pause"


@pytest.mark.extended
def test_free_texts_are_distributed_as_without(draft_folder: Path, tmp_path: Path) -> None:
    """A two-sample chi-square test of three tokens; a draft model whose tokens are often wrong."""
    texts, prompt = 1200, [3, 4, 50]
    other = save_repeating_model(tmp_path, loudness=9.0)
    counts = []
    for draft_model in (other, None):
        model: GeneratingModel = load_generating(draft_folder, max_batch_size=100, draft_model=draft_model)
        if draft_model is not None:
            never_stop_proposing(model)
            proposer_of(model)._random = np.random.default_rng(7)
        first = texts if draft_model is None else 0
        seen: Counter[tuple[int, ...]] = Counter()
        proposed = accepted = 0
        for start in range(first, first + texts, 100):
            samplings = [Sampling(top_k=3, temperature=0.9, seed=number) for number in range(start, start + 100)]
            requests = [request(i, prompt, 4, each, is_seeded=False) for i, each in enumerate(samplings)]
            tokens, of_step, right = with_counts(model, *requests)
            seen.update(tuple(token.token_id for token in text[1:]) for text in tokens.values())
            proposed, accepted = proposed + of_step, accepted + right
        counts.append(seen)
        assert (proposed > 1000, accepted > 500, 0 < accepted < 0.8 * proposed) == ((draft_model is not None,) * 3)
    ours, theirs = counts
    common = [text for text in ours | theirs if ours[text] + theirs[text] >= 10]
    assert len(common) > 10
    pairs = [(ours[text], theirs[text]) for text in common]
    pairs.append((texts - sum(a for a, _ in pairs), texts - sum(b for _, b in pairs)))
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    freedom = len(pairs) - 1
    # Of so many degrees of freedom, one in ten thousand is larger (Wilson and Hilferty, 1931).
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3


def test_seeded_texts_equal_those_of_any_draft(plain: GeneratingModel, folder: Path) -> None:
    """Whether a text draws freely is decided by its caller's seed alone."""
    model = drafting(folder, folder)
    requests = [request(i, prompt, 30, replace(FREE, seed=i)) for i, prompt in enumerate(prompts(4))]
    assert_alike(with_counts(model, *requests)[0], tokens_of(plain, *requests))
