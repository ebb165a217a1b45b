"""Sequences with transformers' own caches: texts, memory, cancellation, preemption, constraints and scores."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.loading.cached_model import CachedModel, SequenceCache, cache_bytes
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import alone, ids_of, load_generating, request, run_out, stepped
from tests.support.models.causal_families import save_family
from tests.support.models.causal_folders import END_ID

PROMPT = tuple((7 * i + 3) % 250 for i in range(45))
OTHER = tuple((11 * i + 5) % 250 for i in range(70))
GROWING, CONSTANT, MIXED = "bloom", "mamba", "granitemoehybrid"


@pytest.fixture(params=[GROWING, CONSTANT, MIXED])
def model(request: pytest.FixtureRequest, made_once: FolderMaker) -> Any:
    folder = made_once(save_family, family=request.param)
    return load_generating(folder, max_batch_size=8, max_num_batched_tokens=32)


@pytest.fixture
def bloom(made_once: FolderMaker) -> Any:
    return load_generating(made_once(save_family, family=GROWING), max_batch_size=8, max_num_batched_tokens=32)


def held_bytes(model: GeneratingModel) -> int:
    """Bytes of the tensors of all sequences."""
    caches: list[SequenceCache | None] = [sequence.cache for sequence, _ in model._sequences.values()]
    return sum(cache_bytes(cache) for cache in caches if cache is not None)


@pytest.mark.extended
def test_caches_stay_within_counted_bytes(model: GeneratingModel) -> None:
    for i in range(6):
        model.add(request(i, [i, *OTHER[: 10 * i + 1]], 40))
    largest = 0
    while model.has_work:
        stats = stepped(model).stats
        assert held_bytes(model) <= stats.kv_used_bytes <= stats.kv_total_bytes
        largest = max(largest, held_bytes(model))
    assert largest > 0
    stats = model.step().stats
    assert (stats.kv_used_bytes, stats.kv_cached_bytes, stats.prefix_hit_tokens) == (0, 0, 0)


@pytest.mark.extended
def test_neighbours_do_not_change_a_text(model: GeneratingModel) -> None:
    prompts = [(*PROMPT, i) for i in range(4)] + [(i, *OTHER) for i in range(4)]
    expected = [alone(model, request(i, prompt, 12)) for i, prompt in enumerate(prompts)]
    together = ids_of(model, *(request(10 + i, prompt, 12) for i, prompt in enumerate(prompts)))
    assert [together[10 + i] for i in range(8)] == expected


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancel_drops_the_cache(model: GeneratingModel, steps: int) -> None:
    expected = alone(model, request(1, OTHER, 8))
    model.add(request(2, PROMPT, 30))
    sequence = model._sequences[2][0]
    for _ in range(steps):
        stepped(model)
    assert (sequence.cache is None) == (steps == 0)
    model.abort(2)
    assert sequence.cache is None
    assert model.step().stats.kv_used_bytes == 0
    assert alone(model, request(3, OTHER, 8)) == expected


def test_preempted_text_continues(made_once: FolderMaker, bloom: GeneratingModel) -> None:
    prompts = [(i, *PROMPT[:20]) for i in range(6)]
    expected = [alone(bloom, request(i, prompt, 60)) for i, prompt in enumerate(prompts)]
    folder = made_once(save_family, family=GROWING)
    small = load_generating(folder, max_batch_size=8, max_num_batched_tokens=32, kv_cache_bytes=150_000)
    together = ids_of(small, *(request(i, prompt, 60) for i, prompt in enumerate(prompts)))
    assert [together[i] for i in range(6)] == expected
    assert small.step().stats.preemptions > 0


def test_constraint_and_seed_hold(bloom: GeneratingModel) -> None:
    def constrained(sequence_id: int, seed: int) -> Any:
        matcher = bloom.constrain(Constraint("regex", "[a-c]{4}"))
        stop = frozenset({END_ID})
        return request(sequence_id, PROMPT, 10, Sampling(seed=seed), matcher=matcher, stop_token_ids=stop)

    together = ids_of(bloom, constrained(1, 5), constrained(2, 6), request(3, OTHER, 10))
    assert together[1] == alone(bloom, constrained(4, 5))
    for i in (1, 2):
        assert together[i][-1] == END_ID
        assert set(bloom.tokenizer.decode(tuple(together[i][:-1]))) <= set("abc")


def test_state_models_compute_whole_prompts(made_once: FolderMaker) -> None:
    model = load_generating(made_once(save_family, family=CONSTANT), max_num_batched_tokens=16, max_batch_size=2)
    model.add(request(1, OTHER, 2))
    assert [token.sequence_id for token in stepped(model).tokens] == [1]


@pytest.mark.parametrize("family", [GROWING, CONSTANT])
def test_prompt_scores_match_the_model(made_once: FolderMaker, family: str) -> None:
    folder = made_once(save_family, family=family)
    model = load_generating(folder, max_num_batched_tokens=16, max_batch_size=2)
    model.add(request(1, OTHER, 2, prompt_logprobs=0))
    scores = [each for result in run_out(model) for each in result.scored]
    reference: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        rows = reference(input_ids=torch.tensor([OTHER])).logits[0].log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(OTHER[1:])]
    assert scores[0].logprobs.tolist() == pytest.approx(expected, abs=1e-4)


def test_modules_with_states_serve_many_sequences(made_once: FolderMaker) -> None:
    """RecurrentGemma keeps its state in its modules."""
    folder = made_once(save_family, family="recurrent_gemma")
    cached = CachedModel(AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False))
    with torch.inference_mode():
        cached.find_states(1)
        assert cached._states
        expected = cached.logits_without_cache(list(OTHER))
        cache = cached.start()
        cached.logits(list(OTHER[:50]), 0, cache, 1)
        for position in range(50, 70):
            cached.logits([5, 6], 0, cached.start(), 1)
            row = cached.logits([OTHER[position]], position, cache, 1)
            torch.testing.assert_close(row[0], expected[position], rtol=0, atol=1e-4)
