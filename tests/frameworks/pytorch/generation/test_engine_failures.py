"""Failures of one sequence and failures of a step leave other sequences unharmed."""

from typing import Any

import pytest
import torch

from frameworks.core.errors import InvalidInput, ModelFailed, OutOfMemory
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.scheduling.steps.sequence import StepPart
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import (
    alone,
    decoder_of,
    load_generating,
    request,
    run_out,
    stepped,
)
from tests.support.models.causal_folders import VOCABULARY_SIZE, save_causal_model

PROMPT = tuple((7 * i + 3) % 250 for i in range(45))
OTHER = tuple((11 * i + 5) % 250 for i in range(45))
POISON = 290
"""A token outside every text."""


@pytest.fixture
def model(made_once: FolderMaker) -> Any:
    return load_generating(made_once(save_causal_model), blocks=24, max_batch_size=4, max_num_batched_tokens=40)


def poison(model: GeneratingModel) -> None:
    """Make every row that reads the token POISON NaN."""
    with torch.inference_mode():
        decoder_of(model).embedding[POISON] = torch.nan


class TestFailingAlone:
    def test_unknown_token_fails_its_sequence(self, model: GeneratingModel) -> None:
        expected = alone(model, request(1, PROMPT, 6))
        model.add(request(2, PROMPT, 6))
        model.add(request(3, PROMPT, 6, Sampling(logit_bias={VOCABULARY_SIZE: 1.0})))
        first = stepped(model)
        [(failed, error)] = first.failed
        assert failed == 3
        assert isinstance(error, InvalidInput)
        assert error.field == "logit_bias"
        others = [first, *run_out(model)]
        assert [token.token_id for result in others for token in result.tokens] == expected
        assert not any(result.failed for result in others[1:])

    def test_failure_is_reported_without_other_sequences(self, model: GeneratingModel) -> None:
        model.add(request(3, PROMPT, 6, Sampling(logit_bias={-1: 1.0})))
        [result] = run_out(model)
        assert [failed for failed, _ in result.failed] == [3]
        assert model.step().failed == []

    def test_bias_that_bars_all_tokens_fails_sequence(self, model: GeneratingModel) -> None:
        bias = dict.fromkeys(range(VOCABULARY_SIZE), float("-inf"))
        expected = alone(model, request(1, OTHER, 4))
        model.add(request(2, PROMPT, 4, Sampling(temperature=0, logit_bias=bias)))
        model.add(request(3, OTHER, 4))
        results = run_out(model)
        assert [token.token_id for result in results for token in result.tokens] == expected
        [(sequence_id, error)] = [each for result in results for each in result.failed]
        assert (sequence_id, type(error)) == (2, InvalidInput)

    def test_nan_logits_fail_their_sequence(self, model: GeneratingModel) -> None:
        expected = alone(model, request(1, OTHER, 8))
        poison(model)
        model.add(request(2, OTHER, 8))
        model.add(request(3, [POISON, 4, 5], 8))
        results = run_out(model)
        assert [token.token_id for result in results for token in result.tokens] == expected
        [(sequence_id, error)] = [each for result in results for each in result.failed]
        assert (sequence_id, type(error)) == (3, ModelFailed)
        assert model.step().stats.kv_used_bytes == 0

    def test_reused_blocks_after_nan_are_clean(self, model: GeneratingModel) -> None:
        """Masked values are multiplied by 0, and 0 times NaN is NaN."""
        prompts = [OTHER[:3], OTHER[:33], OTHER[:40], OTHER]
        expected = [alone(model, request(i, prompt, 8)) for i, prompt in enumerate(prompts)]
        poison(model)
        for start in range(4):
            model.add(request(10 + start, [POISON, *PROMPT, *PROMPT], 8))
        run_out(model)
        for i, prompt in enumerate(prompts):
            assert alone(model, request(20 + i, [*prompt], 8)) == expected[i]

    def test_cancelled_nan_sequence_leaves_clean_blocks(self, model: GeneratingModel) -> None:
        poison(model)
        model.add(request(1, [POISON, *PROMPT, *PROMPT], 8))
        stepped(model)
        model.abort(1)
        expected = alone(model, request(2, OTHER, 8))
        assert expected == alone(model, request(3, OTHER, 8))


class Broken(Exception):
    """An error raised in the middle of a step."""


class TestFailedSteps:
    def break_after(self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        """Let the next step write its keys and values, then fail."""
        assert model._parts is not None
        runner: Any = model._parts.runner
        compute = runner.compute

        def fail(parts: list[StepPart]) -> torch.Tensor:
            compute(parts)
            for keys, values in runner.cache.layers:
                keys.fill_(5)
                values.fill_(5)
            monkeypatch.undo()
            raise error

        monkeypatch.setattr(runner, "compute", fail)

    def fail(self, model: GeneratingModel, error: type[Exception]) -> None:
        with pytest.raises(error):
            model.step()
        for sequence_id in range(10):
            model.abort(sequence_id)
        model.check_integrity()

    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_failed_step_clears_prefix_cache(
        self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch, steps: int
    ) -> None:
        expected = alone(model, request(1, PROMPT, 6))
        model.add(request(2, OTHER, 6))
        model.add(request(3, PROMPT, 6))
        for _ in range(steps):
            stepped(model)
        self.break_after(model, monkeypatch, Broken())
        self.fail(model, Broken)
        assert not model.has_work
        assert model.step().stats.kv_used_bytes == 0
        assert model.step().stats.kv_cached_bytes == 0
        model.add(request(4, PROMPT, 6))
        first = stepped(model)
        assert first.begun == [(4, 0)]
        results = [first, *run_out(model)]
        assert [token.token_id for result in results for token in result.tokens] == expected

    def test_failed_step_drops_pending_copies(self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = alone(model, request(1, OTHER, 6))
        model.add(request(2, PROMPT, 6))
        stepped(model)
        model.abort(2)
        self.break_after(model, monkeypatch, Broken())
        model.add(request(3, PROMPT, 6))
        self.fail(model, Broken)
        assert alone(model, request(4, OTHER, 6)) == expected

    def test_out_of_memory_fails_step(self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
        model.add(request(1, PROMPT))
        self.break_after(model, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
        with pytest.raises(OutOfMemory, match="a step of 1 texts does not fit on cpu"):
            model.step()

    def test_device_failure_fails_model(self, model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
        model.add(request(1, PROMPT))
        model._device = torch.device("meta")
        self.break_after(model, monkeypatch, RuntimeError("CUDA error: gone\nand more"))
        with pytest.raises(ModelFailed, match=r"^the device failed: CUDA error: gone$"):
            model.step()
