"""Run text requests over a dispatcher that records the tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.auth.errors import QuotaExceeded
from app.auth.quotas import LimitedPermit, TenantLimits
from app.config.auth_settings import TenantSettings
from frameworks.core.errors import InvalidInput
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.texts import TextService
from frameworks.engine.threads import TokenizerThreads
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    TEXT_OUTPUT,
    ClassifyAnswer,
    PairRequest,
    ScoreAnswer,
    TextRequest,
    TextSpec,
    TokenBatch,
)
from tests.support.loops import in_loop
from tests.support.models.text_files import write_tokenizer

LABEL = ("relevant",)


@dataclass
class Harness:
    """A service over one model. `batches`: what the model was given. `spec`: of the model."""

    service: TextService
    run: Run
    tokenizer: TextTokenizer
    batches: list[TokenBatch] = field(default_factory=list)
    spec: Any = None


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    write_tokenizer(tmp_path, token_types=True)
    tokenizer = TextTokenizer(tmp_path, TextConfig(16, 0, None, True, "", False, "", "bert", LABEL, True, False))
    threads = TokenizerThreads()
    batches: list[TokenBatch] = []

    async def submit(tokens: TokenBatch, *_: Any) -> dict[str, Any]:
        batches.append(tokens)
        return {TEXT_OUTPUT: np.zeros((tokens.rows, 1), np.float32)}

    spec = SimpleNamespace(task="classify", text=TextSpec(16, labels=LABEL, multi_label=True))
    model: Any = SimpleNamespace(tokenizer=tokenizer, spec=spec)
    run = Run(Permit(RequestLimit("the server", None, None)), Timings())
    yield Harness(TextService(model, submit, False, threads), run, tokenizer, batches, spec)
    threads.close()


@in_loop
async def test_pieces_of_long_list_equal_whole(harness: Harness) -> None:
    texts = [f"the cat sat on {'the mat ' * (i % 90)}" for i in range(1500)]
    await harness.service.answer(harness.run, TextRequest(texts))
    [batch] = harness.batches
    assert batch.token_ids == harness.tokenizer.tokenize(texts, truncate=True)


@in_loop
async def test_pieces_of_pairs_equal_whole(harness: Harness) -> None:
    pairs = [("the cat", "sat on " * (i % 70)) for i in range(1500)]
    await harness.service.score(harness.run, PairRequest(pairs))
    assert harness.batches == [harness.tokenizer.tokenize_pairs(pairs, truncate=True)]


@pytest.mark.parametrize("num_texts", [1, 9])
@in_loop
async def test_prompt_of_request_is_before_texts(harness: Harness, num_texts: int) -> None:
    texts = ["cat sat"] * num_texts
    await harness.service.answer(harness.run, TextRequest(texts, prompt="the "))
    [batch] = harness.batches
    assert batch.token_ids == harness.tokenizer.tokenize(["the cat sat"] * num_texts, truncate=True)
    assert batch.unpooled is None


@in_loop
async def test_prompt_of_request_is_not_pooled(harness: Harness, tmp_path: Path) -> None:
    config = replace(harness.tokenizer._config, pools_prompt=False)
    harness.service._model.tokenizer = TextTokenizer(tmp_path, config)  # type: ignore[misc]
    for prompt, number in (("the ", 2), ("", 0), (None, 0)):
        await harness.service.answer(harness.run, TextRequest(["cat sat"], prompt=prompt))
        assert harness.batches.pop().unpooled == [number]


@in_loop
async def test_scores_are_raw_on_request(harness: Harness) -> None:
    service, run, pairs = harness.service, harness.run, [("the cat", "sat")]
    tokens = len(harness.tokenizer.tokenize_pairs(pairs, truncate=True).token_ids[0])
    for raw, score in ((False, 0.5), (True, 0.0)):
        assert await service.score(run, PairRequest(pairs, raw_scores=raw)) == ScoreAnswer([score], tokens)
        with_labels = PairRequest(pairs, raw_scores=raw, with_labels=True)
        assert await service.score(run, with_labels) == ClassifyAnswer([[(LABEL[0], score)]], tokens)
        texts = TextRequest(["the cat"], raw_scores=raw)
        assert await service.answer(run, texts) == ClassifyAnswer([[(LABEL[0], score)]], 4)
    assert await service.score(run, PairRequest([], with_labels=True)) == ClassifyAnswer([])


@in_loop
async def test_pairs_of_model_without_sigmoid_are_raw(harness: Harness) -> None:
    """A single text has a sigmoid, as in transformers' pipeline."""
    harness.spec.text = replace(harness.spec.text, scores_are_logits=True)
    service, run, pairs = harness.service, harness.run, [("the cat", "sat")]
    tokens = len(harness.tokenizer.tokenize_pairs(pairs, truncate=True).token_ids[0])
    assert await service.score(run, PairRequest(pairs)) == ScoreAnswer([0.0], tokens)
    with_labels = await service.score(run, PairRequest(pairs, with_labels=True))
    assert with_labels == ClassifyAnswer([[(LABEL[0], 0.0)]], tokens)
    assert await service.answer(run, TextRequest(["the cat"])) == ClassifyAnswer([[(LABEL[0], 0.5)]], 4)


@in_loop
async def test_values_of_regression_are_raw(harness: Harness) -> None:
    harness.spec.text = replace(harness.spec.text, is_regression=True)
    service, run = harness.service, harness.run
    assert await service.answer(run, TextRequest(["the cat"])) == ClassifyAnswer([[(LABEL[0], 0.0)]], 4)
    with_labels = await service.score(run, PairRequest([("the cat", "sat")], with_labels=True))
    assert isinstance(with_labels, ClassifyAnswer)
    assert with_labels.predictions == [[(LABEL[0], 0.0)]]


@in_loop
async def test_error_in_later_piece_names_text(harness: Harness) -> None:
    texts = ["the cat"] * 1400 + ["the cat " * 99] * 2
    with pytest.raises(InvalidInput, match=r"^text\[1400\]: expected at most 16 tokens, got 200; "):
        await harness.service.answer(harness.run, TextRequest(texts, truncate=False))
    with pytest.raises(InvalidInput, match=r"^pairs\[1400\]: expected at most 16 tokens, got "):
        await harness.service.score(harness.run, PairRequest([(text, "cat") for text in texts], truncate=False))
    assert harness.batches == []


@in_loop
async def test_text_beyond_characters_of_limit_is_refused_unread(harness: Harness) -> None:
    """The tokenizer drops spaces: the limit is 128 Ki characters."""
    with pytest.raises(InvalidInput, match=r"^text\[0\]: expected at most 16 tokens, got 3200000 characters, which"):
        await harness.service.answer(harness.run, TextRequest([" " * 3_200_000], truncate=False))


@in_loop
async def test_tokens_of_texts_and_pairs_are_charged(harness: Harness) -> None:
    limits = TenantLimits(TenantSettings(name="t", tokens_per_minute=10_000), ByteLimit(None), lambda: 0.0)
    harness.run.permit = LimitedPermit(RequestLimit("the server", None, None), Tenant("t"), limits)
    assert limits.tokens is not None
    await harness.service.answer(harness.run, TextRequest(["the cat", "sat"]))
    await harness.service.score(harness.run, PairRequest([("the cat", "sat"), ("the mat", "sat on")]))
    assert limits.tokens.left() == pytest.approx(
        1000 - sum(map(len, (*harness.batches[0].token_ids, *harness.batches[1].token_ids)))
    )
    limits.use(1000)
    with pytest.raises(QuotaExceeded, match="tokens_per_minute"):
        await harness.service.answer(harness.run, TextRequest(["the cat"]))
    assert len(harness.batches) == 2, "the refused text was not run"
