"""Two ranks, each a process, that compute together by gloo: their texts equal those of one process."""

from collections.abc import Iterator
from typing import Any

import pytest

from frameworks.generation.types import Sampling
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
    tokens_of,
)
from tests.support.models.causal_folders import save_causal_model

PROMPTS = [[(7 * i + j) % 250 for j in range(length)] for i, length in enumerate((1, 31, 33, 70, 110, 110))]
SAMPLINGS = [GREEDY, Sampling(top_p=0.9, seed=5), Sampling(temperature=0, repetition_penalty=1.4)]
RANKS: dict[str, Any] = {"tensor_parallel": 2, "kernels": "plain"}
ASKED = [request(i, prompt, 12, SAMPLINGS[i % 3]) for i, prompt in enumerate(PROMPTS)]
# Sums over two ranks are rounded in another order.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def single(made_once: FolderMaker) -> Any:
    return load_generating(made_once(save_causal_model), kernels="plain")


@pytest.fixture(scope="module")
def parallel(made_once: FolderMaker) -> Iterator[Any]:
    """The cache holds hardly more than one longest text."""
    folder = made_once(save_causal_model)
    model = load_generating(folder, blocks=7, max_batch_size=5, max_num_batched_tokens=24, **RANKS)
    yield model
    model.close()


def test_concurrent_texts_equal_one_process(single: GeneratingModel, parallel: GeneratingModel) -> None:
    assert ids_of(parallel, *ASKED) == ids_of(single, *ASKED)


def test_preempted_texts_equal_one_process(single: GeneratingModel, parallel: GeneratingModel) -> None:
    asked = [request(i, [(i + 3 * j) % 250 for j in range(30)], 40, SAMPLINGS[i % 3]) for i in range(4)]
    before = parallel.step().stats.preemptions
    assert ids_of(parallel, *asked) == ids_of(single, *asked)
    assert parallel.step().stats.preemptions > before


def test_cached_prefix_is_used_by_ranks(single: GeneratingModel, parallel: GeneratingModel) -> None:
    prompt = [(11 * i + 5) % 250 for i in range(70)]
    expected = alone(single, request(1, prompt))
    assert alone(parallel, request(1, prompt)) == expected
    parallel.add(request(2, prompt))
    results = run_out(parallel)
    assert [each for result in results for each in result.begun] == [(2, 64)]
    assert [token.token_id for result in results for token in result.tokens] == expected


def test_cancelled_text_leaves_others_unharmed(single: GeneratingModel, parallel: GeneratingModel) -> None:
    kept, cancelled = request(1, PROMPTS[3], 20), request(2, PROMPTS[2], 20)
    expected = alone(single, kept)
    parallel.add(kept)
    parallel.add(cancelled)
    texts: list[int] = []
    for number in range(40):
        if number == 6:
            parallel.abort(2)
        texts += [token.token_id for token in stepped(parallel).tokens if token.sequence_id == 1]
    assert texts == expected
    assert parallel.step().stats.kv_used_bytes == 0


def test_logits_are_within_tolerance(single: GeneratingModel, parallel: GeneratingModel) -> None:
    asked = request(1, PROMPTS[3], 8, Sampling(temperature=0, top_logprobs=5))
    for own, other in zip(tokens_of(parallel, asked)[1], tokens_of(single, asked)[1], strict=True):
        assert own.logprob == pytest.approx(other.logprob, abs=TOLERANCE)
        assert [each for each, _ in own.top_logprobs] == [each for each, _ in other.top_logprobs]


def test_prompt_scores_equal_one_process(single: GeneratingModel, parallel: GeneratingModel) -> None:
    asked = request(1, PROMPTS[3], 1, prompt_logprobs=0)
    scores = []
    for model in (single, parallel):
        model.add(asked)
        [scored] = [each for result in run_out(model) for each in result.scored]
        scores.append(scored.logprobs)
    assert scores[1] == pytest.approx(scores[0], abs=TOLERANCE)


def test_proposed_tokens_are_verified_by_ranks(made_once: FolderMaker) -> None:
    """The model has biases, and a vocabulary that the number of ranks does not divide."""
    folder = made_once(save_causal_model, attention_bias=True, mlp_bias=True, vocab_size=301)
    repeated = [(3 * i) % 20 for i in range(60)]
    asked = [request(i, [*repeated, i], 16) for i in range(2)]
    model = load_generating(folder, speculation="lookup", **RANKS)
    try:
        never_stop_proposing(model)
        for one in asked:
            model.add(one)
        results = run_out(model)
    finally:
        model.close()
    assert sum(result.num_proposed for result in results) > 0
    texts: dict[int, list[int]] = {0: [], 1: []}
    for token in (token for result in results for token in result.tokens):
        texts[token.sequence_id].append(token.token_id)
    assert texts == ids_of(load_generating(folder, kernels="plain"), *asked)


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
@pytest.mark.extended
def test_families_have_equal_texts(family: str, made_once: FolderMaker) -> None:
    folder = made_once(save_causal_model, model_type=family, tie_word_embeddings=family == "qwen2")
    model = load_generating(folder, **RANKS)
    try:
        texts = ids_of(model, *ASKED)
    finally:
        model.close()
    assert texts == ids_of(load_generating(folder, kernels="plain"), *ASKED)


@pytest.mark.extended
def test_bfloat16_generates(made_once: FolderMaker) -> None:
    """The load compares the logits of all ranks with those of transformers' layers on them."""
    model = load_generating(made_once(save_causal_model), dtype="bf16", tensor_parallel=2)
    try:
        assert [len(text) for text in ids_of(model, *ASKED).values()] == [12] * len(ASKED)
    finally:
        model.close()
