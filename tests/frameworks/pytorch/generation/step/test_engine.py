"""The engine behind its contract: ends of texts, cancellation, stats, warm-up and constraints."""

from typing import Any

import pytest
import torch

from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.sampling import token_masks
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    GREEDY,
    alone,
    decoder_of,
    ids_of,
    load_generating,
    request,
    stepped,
    tokens_of,
)
from tests.support.models.causal_folders import END_ID, save_causal_model

PROMPT = tuple((7 * i + 3) % 250 for i in range(45))
OTHER = tuple((11 * i + 5) % 250 for i in range(45))


@pytest.fixture
def model(made_once: FolderMaker) -> Any:
    return load_generating(made_once(save_causal_model), blocks=24, max_batch_size=4, max_num_batched_tokens=40)


def block_bytes(model: GeneratingModel) -> int:
    return model.step().stats.kv_total_bytes // 24


class TestEnds:
    def test_text_ends_at_max_tokens(self, model: GeneratingModel) -> None:
        tokens = tokens_of(model, request(1, PROMPT, 5), request(2, OTHER, 1))
        assert [token.finish_reason for token in tokens[1]] == [None] * 4 + ["length"]
        assert [token.finish_reason for token in tokens[2]] == ["length"]
        assert all(token.is_text for token in (*tokens[1], *tokens[2]))

    def test_text_ends_before_stop_token(self, model: GeneratingModel) -> None:
        text = alone(model, request(1, PROMPT, 6))
        stop = text[3]
        tokens = tokens_of(model, request(2, PROMPT, 6, stop_token_ids=frozenset({stop, 1000})))[2]
        end = text.index(stop)
        assert [token.token_id for token in tokens] == text[: end + 1]
        assert (tokens[-1].finish_reason, tokens[-1].is_text) == ("stop", False)
        assert all(token.is_text and token.finish_reason is None for token in tokens[:-1])

    def test_stop_token_at_max_tokens_counts_as_stop(self, model: GeneratingModel) -> None:
        [first] = alone(model, request(1, PROMPT, 1))
        [token] = tokens_of(model, request(2, PROMPT, 1, stop_token_ids=frozenset({first})))[2]
        assert (token.finish_reason, token.is_text) == ("stop", False)

    def test_text_does_not_end_before_min_tokens(self, model: GeneratingModel) -> None:
        [first] = alone(model, request(1, PROMPT, 1))
        stop = frozenset({first})
        text = alone(model, request(2, PROMPT, 6, stop_token_ids=stop, min_tokens=4))
        assert first not in text[:4]

    def test_text_ends_at_context_limit(self, model: GeneratingModel) -> None:
        assert model.spec.generation is not None
        most = model.spec.generation.max_context_tokens
        assert len(alone(model, request(1, [5] * (most - 1), 1))) == 1
        assert len(alone(model, request(2, [5] * (most - 40), 40))) == 40

    def test_prompt_of_one_token_is_continued(self, model: GeneratingModel) -> None:
        assert len(alone(model, request(1, [5], 3))) == 3


class TestLeaving:
    @pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
    def test_cancel_frees_blocks_at_any_step(self, model: GeneratingModel, steps: int) -> None:
        """Cancel in the queue, during prefill and between tokens; no blocks remain."""
        neighbour = alone(model, request(1, OTHER, 10))
        model.add(request(2, OTHER, 10))
        model.add(request(3, [9] * 90, 10))
        given: list[int] = []
        for _ in range(steps):
            given += [token.token_id for token in stepped(model).tokens if token.sequence_id == 2]
        model.abort(3)
        while model.has_work:
            result = stepped(model)
            assert {token.sequence_id for token in result.tokens} <= {2}
            given += [token.token_id for token in result.tokens]
        assert given == neighbour
        assert model.step().stats.kv_used_bytes == 0

    def test_cancel_of_unknown_sequence_is_ignored(self, model: GeneratingModel) -> None:
        model.add(request(1, PROMPT))
        stepped(model)
        model.abort(1)
        model.abort(1)
        model.abort(77)
        assert not model.has_work

    def test_step_after_last_cancel_reports_stats(self, model: GeneratingModel) -> None:
        model.add(request(1, PROMPT))
        stepped(model)
        model.abort(1)
        result = model.step()
        assert (result.tokens, result.begun, result.failed) == ([], [], [])
        assert (result.stats.running, result.stats.waiting, result.stats.kv_used_bytes) == (0, 0, 0)
        assert result.stats.kv_cached_bytes > 0

    def test_cancelled_prefix_is_cached(self, model: GeneratingModel) -> None:
        expected = alone(model, request(1, PROMPT, 6))
        fresh = request(2, [4, *PROMPT], 6)
        model.add(fresh)
        stepped(model)
        model.abort(2)
        model.add(request(3, [4, *PROMPT], 6))
        assert stepped(model).begun == [(3, 32)]
        model.abort(3)
        assert alone(model, request(4, PROMPT, 6)) == expected


class TestFigures:
    def test_stats_follow_a_sequence(self, model: GeneratingModel) -> None:
        one = block_bytes(model)
        for i in range(6):
            model.add(request(i, [i, *PROMPT[:29]], 4))
        stats = stepped(model).stats
        assert (stats.running, stats.waiting) == (2, 4), "forty tokens a step"
        assert (stats.kv_used_bytes, stats.prompt_tokens) == (2 * one, 60)
        assert (stats.kv_total_bytes, stats.kv_cached_bytes) == (24 * one, 0)
        while model.has_work:
            stats = stepped(model).stats
        assert (stats.running, stats.waiting, stats.kv_used_bytes) == (0, 0, 0)
        assert (stats.prompt_tokens, stats.prefix_hit_tokens, stats.preemptions) == (180, 0, 0)
        assert stats.kv_cached_bytes == 6 * one

    def test_cache_hits_are_counted(self, model: GeneratingModel) -> None:
        alone(model, request(1, PROMPT, 2))
        model.add(request(2, PROMPT, 2))
        result = stepped(model)
        assert result.begun == [(2, 32)]
        assert (result.stats.prompt_tokens, result.stats.prefix_hit_tokens) == (90, 32)

    def test_first_step_reports_begun_sequences(self, model: GeneratingModel) -> None:
        model.add(request(1, PROMPT, 2))
        begun = []
        while model.has_work:
            begun.append(stepped(model).begun)
        assert begun == [[(1, 0)], [], []]


class TestStandingReady:
    def test_warm_up_leaves_no_blocks(self, model: GeneratingModel) -> None:
        model.warm_up()
        stats = model.step().stats
        assert not model.has_work
        assert (stats.running, stats.waiting, stats.kv_used_bytes, stats.kv_cached_bytes) == (0, 0, 0, 0)
        model.check_integrity()

    def test_warm_up_teaches_step_costs(self, model: GeneratingModel) -> None:
        model.warm_up()
        assert model._parts is not None
        cost = model._parts.scheduler.cost
        assert cost._decode_s
        assert cost._prompts.token_s is not None

    def test_warm_up_reads_vocabulary_for_constraints(
        self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model.warm_up()
        monkeypatch.setattr(token_masks, "LLTokenizer", lambda *_: pytest.fail("it was read again"))
        assert model.constrain(Constraint("regex", "[a-z]"))

    @pytest.mark.parametrize(
        ("error", "ours", "message"),
        [
            (RuntimeError("no"), InvalidModel, "the model does not generate text: no"),
            (IndexError("no"), InvalidModel, "the model does not generate text: no"),
            (torch.OutOfMemoryError("no"), OutOfMemory, "does not fit on cpu"),
        ],
    )
    def test_model_that_does_not_run_is_refused(
        self,
        model: GeneratingModel,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        ours: type[Exception],
        message: str,
    ) -> None:
        def fail(_: object) -> None:
            raise error

        assert model._parts is not None
        monkeypatch.setattr(model._parts.runner, "compute", fail)
        with pytest.raises(ours, match=message):
            model.warm_up()
        assert not model.has_work

    def test_model_with_nan_logits_is_refused(self, model: GeneratingModel) -> None:
        with torch.inference_mode():
            decoder_of(model).embedding.fill_(torch.nan)
        with pytest.raises(
            InvalidModel, match="the model does not generate text: the model returned logits that are not"
        ):
            model.warm_up()
        assert not model.has_work

    def test_closed_engine_raises(self, model: GeneratingModel) -> None:
        model.add(request(1, PROMPT))
        stepped(model)
        model.close()
        assert not model.has_work
        model.check_integrity()
        with pytest.raises(ModelFailed, match="the model is closed"):
            model.add(request(2, PROMPT))
        with pytest.raises(ModelFailed, match="the model is closed"):
            model.step()
        model.abort(1)


class TestConstraints:
    PATTERN = Constraint("regex", "[a-c]{4}")

    def constrained(self, model: GeneratingModel, sequence_id: int, sampling: Sampling = GREEDY) -> SequenceRequest:
        matcher = model.constrain(self.PATTERN)
        return request(sequence_id, PROMPT, 10, sampling, matcher=matcher, stop_token_ids=frozenset({END_ID}))

    def test_text_matches_its_constraint(self, model: GeneratingModel) -> None:
        text = alone(model, self.constrained(model, 1))
        assert text[-1] == END_ID
        words = model.tokenizer.decode(tuple(text[:-1]))
        assert len(words) == 4
        assert set(words) <= set("abc")

    def test_constraint_leaves_other_rows_alone(self, model: GeneratingModel) -> None:
        free, bound = alone(model, request(1, OTHER, 10)), alone(model, self.constrained(model, 2))
        together = ids_of(model, request(3, OTHER, 10), self.constrained(model, 4), request(5, OTHER, 10))
        assert together == {3: free, 4: bound, 5: free}

    def test_choices_have_separate_matchers(self, model: GeneratingModel) -> None:
        siblings = [self.constrained(model, i, Sampling(seed=i)) for i in range(4)]
        together = ids_of(model, *siblings)
        for i in range(4):
            again = self.constrained(model, 10 + i, Sampling(seed=i))
            assert alone(model, again) == together[i]
        assert len({tuple(text) for text in together.values()}) > 1
