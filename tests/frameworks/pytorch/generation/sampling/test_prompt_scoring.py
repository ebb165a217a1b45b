"""Log probabilities of prompts against transformers' own forward: whole, in parts, in batches, with a cached prefix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from frameworks.generation.prompt_scores import PromptScores
from frameworks.generation.sequences import SequenceRequest, StepResult
from frameworks.pytorch.generation.loading import generator as loading
from frameworks.pytorch.generation.sampling.prompt_scoring import max_scored_tokens
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import alone, load_generating, request, run_out, stepped
from tests.support.models.causal_folders import CONTEXT_TOKENS, save_causal_model

NUM_TOP = 3
TOLERANCE = 1e-4
PROMPTS = [
    tuple((7 * i + 3 * number) % 250 for i in range(length)) for number, length in enumerate((45, 2, 130, 33, 32))
]


@pytest.fixture
def folder(made_once: FolderMaker) -> Path:
    return made_once(save_causal_model)


def load(folder: Path, max_num_batched_tokens: int = 512, blocks: int = 48) -> Any:
    return load_generating(folder, blocks=blocks, max_batch_size=4, max_num_batched_tokens=max_num_batched_tokens)


def scored(sequence_id: int, prompt: Sequence[int], max_tokens: int = 1, num_top: int = NUM_TOP) -> SequenceRequest:
    return request(sequence_id, prompt, max_tokens, prompt_logprobs=num_top)


def scores_of(
    model: GeneratingModel, requests: Sequence[SequenceRequest]
) -> tuple[dict[int, PromptScores], list[StepResult]]:
    """Run sequences to their ends; return the scores of each, and all results. Each prompt is scored once."""
    for each in requests:
        model.add(each)
    results = run_out(model)
    assert not any(result.failed for result in results)
    scores = [each for result in results for each in result.scored]
    by_sequence = {each.sequence_id: each for each in scores}
    assert len(by_sequence) == len(scores)
    return by_sequence, results


def check(folder: Path, prompt: Sequence[int], scores: PromptScores) -> None:
    """Compare with the logarithm of the softmax of the reference's logits."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([list(prompt)])).logits[0, :-1].float().log_softmax(-1)
    own = expected.gather(1, torch.tensor(prompt[1:])[:, None])
    top = expected.topk(scores.top_ids.shape[1])
    np.testing.assert_allclose(scores.logprobs, own[:, 0].numpy(), atol=TOLERANCE)
    np.testing.assert_allclose(scores.top_logprobs, top.values.numpy(), atol=TOLERANCE)
    assert scores.top_ids.tolist() == top.indices.tolist()
    assert scores.ranks.tolist() == ((expected > own).sum(-1) + 1).tolist()


class TestAgainstReference:
    def test_whole_prompt(self, folder: Path) -> None:
        model = load(folder)
        for number, prompt in enumerate(PROMPTS):
            scores, results = scores_of(model, [scored(number, prompt)])
            assert len(results) == 1
            check(folder, prompt, scores[number])

    @pytest.mark.parametrize("most", [5, 24, 40])
    def test_batch_of_prompts_in_parts(self, folder: Path, most: int) -> None:
        scores, results = scores_of(
            load(folder, most), [scored(number, prompt) for number, prompt in enumerate(PROMPTS)]
        )
        assert len(results) > sum(map(len, PROMPTS)) // 50
        for number, prompt in enumerate(PROMPTS):
            check(folder, prompt, scores[number])

    @pytest.mark.parametrize("architecture", ["gpt2", "gemma3_text", "mistral", "bloom", "mamba"])
    def test_other_architectures(self, made_once: FolderMaker, architecture: str) -> None:
        folder = made_once(save_causal_model, model_type=architecture)
        model = load_generating(folder, max_batch_size=4, max_num_batched_tokens=40)
        scores, _ = scores_of(model, [scored(1, PROMPTS[0]), scored(2, PROMPTS[2])])
        check(folder, PROMPTS[0], scores[1])
        check(folder, PROMPTS[2], scores[2])

    def test_logits_of_a_step_are_bounded(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "max_scored_tokens", lambda _: 20)
        model = load(folder)
        scores, results = scores_of(model, [scored(number, prompt) for number, prompt in enumerate(PROMPTS)])
        assert len(results) >= sum(map(len, PROMPTS)) // 20
        for number, prompt in enumerate(PROMPTS):
            check(folder, prompt, scores[number])

    def test_cached_prefix_is_computed_again(self, folder: Path) -> None:
        model = load(folder, 40)
        text = alone(model, request(1, PROMPTS[2], 4))
        scores, results = scores_of(model, [scored(2, PROMPTS[2], 4)])
        assert [begun for result in results for begun in result.begun] == [(2, 0)]
        check(folder, PROMPTS[2], scores[2])
        assert [token.token_id for result in results for token in result.tokens] == text

    def test_preempted_prompt_is_scored_once(self, folder: Path) -> None:
        """Few blocks: sequences are preempted while others prefill, and computed again."""
        model = load(folder, 24, blocks=8)
        requests = [scored(number, prompt, 60) for number, prompt in enumerate((PROMPTS[0], PROMPTS[2], PROMPTS[3]))]
        scores, results = scores_of(model, requests)
        assert results[-1].stats.preemptions > 0
        for each in requests:
            check(folder, each.prompt_ids, scores[each.sequence_id])


class TestSequences:
    def test_text_is_the_same_with_scores(self, folder: Path) -> None:
        model = load(folder, 24)
        plain = {number: alone(model, request(number, prompt, 8)) for number, prompt in enumerate(PROMPTS)}
        _, results = scores_of(model, [scored(number, prompt, 8) for number, prompt in enumerate(PROMPTS)])
        texts: dict[int, list[int]] = {}
        for result in results:
            for token in result.tokens:
                texts.setdefault(token.sequence_id, []).append(token.token_id)
        assert texts == plain

    def test_other_prompts_take_cached_prefix(self, folder: Path) -> None:
        model = load(folder, 24)
        alone(model, request(1, PROMPTS[0], 2))
        model.add(scored(2, PROMPTS[0]))
        model.add(request(3, PROMPTS[0], 2))
        begun = dict(begun for result in run_out(model) for begun in result.begun)
        assert begun == {2: 0, 3: 32}

    def test_sequence_without_tokens_ends_after_prompt(self, folder: Path) -> None:
        model = load(folder, 24)
        full = tuple(i % 250 for i in range(CONTEXT_TOKENS))
        scores, results = scores_of(model, [scored(1, full, 0), scored(2, PROMPTS[0], 0, num_top=0), scored(3, [5], 0)])
        assert sorted(ended for result in results for ended in result.ended) == [1, 2, 3]
        assert not any(result.tokens for result in results)
        assert scores.keys() == {1, 2}, "nothing precedes the only token of the third"
        assert scores[2].top_ids.shape == (len(PROMPTS[0]) - 1, 0)
        check(folder, full, scores[1])
        assert model.step().stats.kv_used_bytes == 0

    def test_cancelled_prompt_is_forgotten(self, folder: Path) -> None:
        model = load(folder, 24)
        model.add(scored(1, PROMPTS[2]))
        stepped(model)
        model.abort(1)
        scores, _ = scores_of(model, [scored(1, PROMPTS[0])])
        check(folder, PROMPTS[0], scores[1])

    def test_step_holds_bounded_logits(self) -> None:
        assert max_scored_tokens(150_000) * 150_000 * 4 <= 64 * 1024**2
        assert max_scored_tokens(10**9) == 16
