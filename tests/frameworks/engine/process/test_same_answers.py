"""An engine behind a channel answers as one in this process: tensors, texts, generated text, counts."""

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Engine, Run, RunCounts
from frameworks.generation.types import Constraint, Conversation, GenerateRequest, Message, Sampling, Stopping
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.text.tokens import DetokenizeRequest, SpansAnswer, SpansRequest, TokenizeRequest
from frameworks.types import Batch, MultiVectorAnswer, PairRequest, SparseAnswer, TensorBatch, TextRequest, Value
from tests.frameworks.engine.process.host.test_hosted_model_times import tokenizer
from tests.frameworks.models.loading import load_torch
from tests.support.batch_models import DoublingModel, numbers
from tests.support.engine_hosts import ArrayModel, TextModel, array_rows, both_engines
from tests.support.loops import in_loop, soon
from tests.support.models.late_folders import save_pylate
from tests.support.models.sparse_folders import save_splade
from tests.support.step_models import EchoModel


class Times:
    """Implement TokenTimes with the numbers of tokens."""

    def __init__(self) -> None:
        self.first = self.next = 0

    def observe_first(self, seconds: float) -> None:
        self.first += 1

    def observe_next(self, seconds: float) -> None:
        self.next += 1


def run_of(tenant: Tenant | None = None) -> Run:
    limit = RequestLimit("the server", None, None)
    return Run(Permit(limit, tenant) if tenant is not None else Permit(limit), Timings())


async def outcome(engine: Engine, request: Any) -> Any:
    """Return the answer of a request or its error, in a form that can be compared."""
    try:
        answer = await engine.answer(run_of(), request)
    except RoundhouseError as error:
        return type(error).__name__, str(error)
    if isinstance(answer, SpansAnswer):
        return answer
    if isinstance(answer, dict):
        return {name: np.asarray(value).tolist() for name, value in answer.items()}
    return [np.asarray(each).tolist() for each in astuple(answer) if each is not None]


def batches_of(counts: RunCounts) -> Any:
    return dict(counts.batches.sizes), dict(counts.batches.split), counts.batches.seconds.keys()


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (ArrayModel, array_rows(1, 4)),
        (ArrayModel, array_rows(3, 4096)),
        (ArrayModel, array_rows(20, 2000)),
        (DoublingModel, numbers(1, 2, 3)),
        (DoublingModel, numbers("bad")),
        (DoublingModel, TextRequest(["a text"])),
        (DoublingModel, TensorBatch({"x": [1]}, ("y",))),
    ],
    ids=["small", "large", "parts", "list", "bad", "text", "names"],
)
@in_loop
async def test_tensor_answers_are_equal(make: Any, request_: Any) -> None:
    async with both_engines(make) as ((local, counts), (remote, remote_counts)):
        for _ in range(3):
            assert await outcome(remote, request_) == await outcome(local, request_)
            assert batches_of(remote_counts) == batches_of(counts)


@pytest.mark.parametrize("kind", ["embed", "classify"])
@pytest.mark.parametrize(
    "request_",
    [
        TextRequest(["the cat", "sat on the mat"]),
        TextRequest([]),
        TextRequest(["the cat " * 30], truncate=False),
        TextRequest(["the cat"] * 3000, top_k=1),
        TextRequest([], token_ids=[[2, 3]]),
        PairRequest([("the cat", "sat"), ("the mat", "sat")]),
        PairRequest([("the cat " * 30, "sat")], truncate=False),
        SpansRequest(("the cat", "")),
        TokenizeRequest("the cat", with_strings=True),
        DetokenizeRequest((6, 7, 8)),
    ],
    ids=["texts", "none", "long", "many", "ids", "pairs", "pair", "spans", "tokenize", "detokenize"],
)
@in_loop
async def test_text_answers_are_equal(request_: Any, kind: str, tmp_path: Path) -> None:
    own = tokenizer(tmp_path)
    async with both_engines(lambda: TextModel(own, kind)) as ((local, counts), (remote, remote_counts)):
        assert await outcome(remote, request_) == await outcome(local, request_)
        assert sum(remote_counts.batches.sizes.elements()) == sum(counts.batches.sizes.elements())


@pytest.mark.parametrize("are_queries", [True, False])
@in_loop
async def test_token_vectors_are_equal(are_queries: bool, tmp_path: Path) -> None:
    folder = save_pylate(tmp_path)
    texts = ["the cat .", "sat on the mat , of steam"]
    request = TextRequest(texts, are_queries=are_queries, vectors=("multi",))
    pairs = PairRequest([("the cat", text) for text in texts])
    async with both_engines(lambda: load_torch(folder)) as ((local, _), (remote, _)):
        answers = [await engine.answer(run_of(), request) for engine in (local, remote)]
        found = [answer for answer in answers if isinstance(answer, MultiVectorAnswer)]
        assert len(found) == 2
        for answer in found:
            assert [len(each) for each in answer.vectors] == ([12, 12] if are_queries else [5, 9])
        for own, theirs in zip(found[0].vectors, found[1].vectors, strict=True):
            np.testing.assert_array_equal(own, theirs)
        assert await outcome(remote, pairs) == await outcome(local, pairs)
        refusal = await outcome(remote, TextRequest(texts))
        assert refusal == await outcome(local, TextRequest(texts))
        assert "post the texts to /infer or /pooling" in refusal[1]


@in_loop
async def test_sparse_vectors_are_equal(tmp_path: Path) -> None:
    folder = save_splade(tmp_path)
    texts = ["the cat .", "sat on the mat , of steam"]
    request = TextRequest(texts, vectors=("sparse",))
    async with both_engines(lambda: load_torch(folder)) as ((local, _), (remote, _)):
        answers: list[Any] = [await engine.answer(run_of(), request) for engine in (local, remote)]
        for answer in answers:
            assert isinstance(answer, SparseAnswer)
            assert [each.dtype for each in answer.indices + answer.values] == [np.int32] * 2 + [np.float32] * 2
        first, second = (
            dict(zip(*pair, strict=True)) for pair in zip(answers[0].indices, answers[0].values, strict=True)
        )
        product = sum(float(first[at]) * float(second[at]) for at in first.keys() & second.keys())
        scored: Any = await local.answer(run_of(), PairRequest([(texts[0], texts[1])]))
        assert scored.scores == pytest.approx([product], rel=1e-5)
        shorter = TextRequest(texts, vectors=("sparse",), top_k=3)
        best: Any = await local.answer(run_of(), shorter)
        for all_values, values in zip(answers[0].values, best.values, strict=True):
            assert sorted(values) == sorted(all_values)[-3:]
        answers += [best, await remote.answer(run_of(), shorter)]
        for own, theirs in (answers[:2], answers[2:]):
            for one, other in zip(own.indices + own.values, theirs.indices + theirs.values, strict=True):
                np.testing.assert_array_equal(one, other)
        refused = await outcome(local, TextRequest(texts, normalize=True, vectors=("sparse",)))
        assert refused[1].startswith("normalize: expected no true")
        assert (
            "post the texts to /infer, /embed_sparse or /pooling, or pairs"
            in (await outcome(local, TextRequest(texts)))[1]
        )
        for each in (PairRequest([(texts[0], texts[1])]), TextRequest(texts)):
            assert await outcome(remote, each) == await outcome(local, each)


GENERATIONS = {
    "plain": GenerateRequest(("hello world",), stopping=Stopping(max_tokens=6)),
    "stop": GenerateRequest(("hello world",), stopping=Stopping(max_tokens=9, strings=("wor", "xyz"))),
    "choices": GenerateRequest(("ab", (99, 100)), stopping=Stopping(max_tokens=4), num_choices=2),
    "logprobs": GenerateRequest(("abc",), Sampling(top_logprobs=2), Stopping(max_tokens=5)),
    "unicode": GenerateRequest(("aßc€",), stopping=Stopping(max_tokens=8)),
    "chat": GenerateRequest((Conversation((Message("user", "hi"),)),), stopping=Stopping(max_tokens=8)),
    "constraint": GenerateRequest(("ab",), stopping=Stopping(max_tokens=5), constraint=Constraint("choice", "no")),
    "invalid": GenerateRequest(("ab",), stopping=Stopping(max_tokens=5), constraint=Constraint("regex", "(")),
    "fails": GenerateRequest(((97, 98, 1, 99),), stopping=Stopping(max_tokens=5)),
    "context": GenerateRequest(("a" * 5000,), stopping=Stopping(max_tokens=5)),
}


def rows_of(counts: BatchCounts) -> int:
    return sum(rows * count for rows, count in counts.sizes.items())


async def generated(engine: Engine, request: GenerateRequest, in_pieces: bool) -> Any:
    """Return the texts, the reasons of their ends, the log probabilities, the usage, and the numbers of token times."""
    times = Times()
    try:
        generation = await engine.generate(run_of(Tenant("t")), request, times, None, in_pieces)
        if not in_pieces:
            answer = await generation.collect()
            return answer.choices, answer.usage, times.first, times.next
        texts: dict[int, list[Any]] = {}
        async for piece in generation:
            text = texts.setdefault(piece.index, ["", [], None])
            text[0] += piece.text
            text[1] += piece.tokens
            text[2] = piece.finish_reason
        return texts, generation.usage, times.first, times.next
    except RoundhouseError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("in_pieces", [True, False], ids=["pieces", "whole"])
@pytest.mark.parametrize("request_", GENERATIONS.values(), ids=GENERATIONS)
@in_loop
async def test_generated_texts_are_equal(request_: GenerateRequest, in_pieces: bool) -> None:
    async with both_engines(EchoModel) as ((local, counts), (remote, remote_counts)):
        assert await generated(remote, request_, in_pieces) == await generated(local, request_, in_pieces)
        # The thread ends a text after its last piece was found by a stop string.
        await soon(lambda: not local.is_running and remote.stats == local.stats)
        await soon(lambda: remote_counts.generated == counts.generated)
        # Sequences that begin together may have their first step apart, as a thread takes them.
        assert rows_of(remote_counts.generated.steps) == rows_of(counts.generated.steps)
        assert remote_counts.generated.tenants == counts.generated.tenants


@in_loop
async def test_closed_generation_ends_in_process() -> None:
    models: list[EchoModel] = []

    def make() -> EchoModel:
        models.append(EchoModel())
        return models[-1]

    async with both_engines(make) as ((_, _), (remote, _)):
        request = GenerateRequest(("ab",), stopping=Stopping(max_tokens=4000))
        generation = await remote.generate(run_of(), request, Times(), None, True)
        await anext(generation)
        generation.close()
        hosted = models[1]
        await soon(lambda: not hosted.has_work)
        assert hosted.aborted


@in_loop
async def test_refused_generation_raises_at_start() -> None:
    async with both_engines(DoublingModel) as (_, (remote, _)):
        with pytest.raises(InvalidInput, match="name another model"):
            await remote.generate(run_of(), GENERATIONS["plain"], Times(), None, True)


@in_loop
async def test_learned_spec_reaches_server() -> None:
    class LearningModel(ArrayModel):
        def infer(self, batch: Batch) -> dict[str, Value]:
            self.spec = replace(self.spec, unbatched_because="its rows differ")
            return super().infer(batch)

    async with both_engines(LearningModel) as (_, (remote, _)):
        assert remote.model.spec.unbatched_because != "its rows differ"
        await outcome(remote, array_rows(1, 4))
        await soon(lambda: remote.model.spec.unbatched_because == "its rows differ")
