"""Test the engine of pipelines: values equal the steps by hand, branches run at once, errors name their step."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from extensions.pipelines import runs
from frameworks.core.errors import Draining, InvalidInput, ModelFailed, Overloaded
from frameworks.core.timings import Timings
from frameworks.types import (
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    PairRequest,
    ScoreAnswer,
    TensorBatch,
    TextRequest,
)
from tests.support.loops import in_loop, task
from tests.support.pipelines import (
    NumpyParts,
    ask,
    call,
    engine_of,
    pipeline,
    step,
    strings,
    tensor_spec,
    tensors,
    text_spec,
)

RNG = np.random.default_rng(7)
A, B = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(3, 5)).astype(np.float32)
X = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = ("ant", "bee", "cat", "dog", "eel")


def product(weights: Array) -> Any:
    def run(request: TensorBatch) -> dict[str, Any]:
        return {"y": request.inputs["x"] @ weights}

    return run


def two_models(**functions: Any) -> NumpyParts:
    specs = {"a": tensor_spec(4, 3), "b": tensor_spec(3, 5)}
    return NumpyParts(specs, {"a": product(A), "b": product(B), **functions})


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


CHAIN = (
    call("one", "a", {"x": "x"}),
    call("two", "b", {"x": "one"}),
    step("p", "softmax", {"values": "two"}),
    step("names", "labels", {"scores": "p"}, labels=list(LABELS), top_k=2),
)
BRANCHES = (
    call("left", "a", {"x": "x"}),
    call("right", "a", {"x": "x"}),
    step("both", "concat", {"one": "left", "two": "right"}),
)


class TestPipelineEngine:
    @in_loop
    async def test_chain_equals_the_steps_by_hand(self, threads: ThreadPoolExecutor) -> None:
        engine = engine_of(
            pipeline(["x"], {"p": "p", "best": "names", "s": "names.scores"}, *CHAIN), two_models(), threads
        )
        timings = Timings()
        answer = await ask(engine, tensors(x=X), timings)
        raw = np.exp(X @ A @ B)
        expected = raw / raw.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(answer["p"], expected, rtol=1e-5)
        order = np.argsort(-expected, axis=1)[:, :2]
        assert [list(row) for row in answer["best"]] == [[LABELS[at] for at in row] for row in order]
        np.testing.assert_allclose(answer["s"], np.take_along_axis(expected, order, axis=1), rtol=1e-5)
        assert [name for name, *_ in timings.steps or []] == ["one", "two", "p", "names"]

    @in_loop
    async def test_only_named_outputs_are_returned(self, threads: ThreadPoolExecutor) -> None:
        engine = engine_of(pipeline(["x"], {"p": "p", "h": "one"}, *CHAIN[:3]), two_models(), threads)
        assert list(await ask(engine, TensorBatch({"x": X}, ("h",)))) == ["h"]

    @in_loop
    async def test_branches_run_at_the_same_time(self, threads: ThreadPoolExecutor) -> None:
        arrived, release = asyncio.Event(), asyncio.Event()
        running = 0

        async def wait(request: TensorBatch) -> dict[str, Any]:
            nonlocal running
            running += 1
            if running == 2:
                arrived.set()
            await release.wait()
            return product(A)(request)  # type: ignore[no-any-return]

        engine = engine_of(pipeline(["x"], {"y": "both"}, *BRANCHES), two_models(a=wait), threads)
        requests = task(ask(engine, tensors(x=X)))
        await asyncio.wait_for(arrived.wait(), 10)
        release.set()
        np.testing.assert_allclose((await requests)["y"], np.hstack([X @ A, X @ A]), rtol=1e-6)

    @in_loop
    async def test_failed_branch_cancels_the_other(self, threads: ThreadPoolExecutor) -> None:
        ended = asyncio.Event()

        async def wait(_: TensorBatch) -> dict[str, Any]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        async def fail(_: TensorBatch) -> dict[str, Any]:
            raise Overloaded("full", 1.5)

        steps = (*BRANCHES[:1], call("right", "c", {"x": "x"}), BRANCHES[2])
        parts = two_models(a=wait, c=fail)
        parts.specs["c"] = tensor_spec(4, 3)
        engine = engine_of(pipeline(["x"], {"y": "both"}, *steps), parts, threads)
        with pytest.raises(Overloaded) as caught:
            await ask(engine, tensors(x=X))
        assert caught.value.retry_after_s == 1.5
        assert ended.is_set()
        engine.check_integrity()

    @pytest.mark.parametrize("steps", [CHAIN[:1], BRANCHES], ids=["serial", "parallel"])
    @in_loop
    async def test_cancelled_request_cancels_its_parts(self, threads: ThreadPoolExecutor, steps: Any) -> None:
        cancelled, arrived = [], asyncio.Event()

        async def wait(_: TensorBatch) -> dict[str, Any]:
            arrived.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise
            raise AssertionError

        engine = engine_of(pipeline(["x"], {"y": steps[-1]["name"]}, *steps), two_models(a=wait), threads)
        requests = task(ask(engine, tensors(x=X)))
        await arrived.wait()
        requests.cancel()
        await asyncio.wait([requests])
        assert requests.cancelled()
        assert len(cancelled) == min(2, len(steps))
        engine.check_integrity()

    @in_loop
    async def test_error_of_built_in_step_names_it(self, threads: ThreadPoolExecutor) -> None:
        entry = pipeline(
            ["x", "i"], {"y": "again"}, step("again", "labels", {"scores": "x", "indices": "i"}, labels=["a", "b"])
        )
        engine = engine_of(entry, NumpyParts({}, {}), threads)
        with pytest.raises(InvalidInput) as caught:
            await ask(engine, tensors(x=X[:, :1], i=np.full((6, 1), 2)))
        assert caught.value.message == 'indices: expected an index of 2 labels for each score (step "again")'

    @in_loop
    async def test_no_rows_call_no_model(self, threads: ThreadPoolExecutor) -> None:
        parts = two_models()
        entry = pipeline(
            {"s": "float32[-1, -1]", "v": "float32[-1, -1, 4]"},
            {"y": "two", "rows": "keep.rows"},
            step("keep", "threshold", {"scores": "s", "values": "v"}, min_score=0.5),
            call("one", "a", {"x": "keep.values"}),
            call("two", "b", {"x": "one"}),
        )
        engine = engine_of(entry, parts, threads)
        scores, values = np.zeros((2, 3), np.float32), np.zeros((2, 3, 4), np.float32)
        answer = await ask(engine, tensors(s=scores, v=values))
        assert (answer["y"].shape, answer["y"].dtype, answer["rows"].shape) == ((0, 5), np.float32, (0,))
        assert parts.requests == []
        scores[1, 2], values[1, 2] = 0.9, 1.0
        answer = await ask(engine, tensors(s=scores, v=values))
        np.testing.assert_allclose(answer["y"], np.ones((1, 4), np.float32) @ A @ B, rtol=1e-5)
        assert answer["rows"].tolist() == [1]

    @in_loop
    async def test_long_arithmetic_runs_on_a_thread(
        self, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs, "_MANY_NUMBERS", 8)
        names: list[str] = []
        monkeypatch.setattr(threads, "submit", _recording(threads, names))
        engine = engine_of(pipeline({"x": "float32[-1, 4]"}, {"y": "p"}, step("p", "softmax", {"values": "x"})),
                           NumpyParts({}, {}), threads)  # fmt: skip
        await ask(engine, tensors(x=X[:2]))
        assert names == []
        await ask(engine, tensors(x=X))
        assert names == ["run"]

    @in_loop
    async def test_long_chain_lets_other_requests_run(
        self, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs, "_YIELD_AFTER_S", -1.0)
        chain = [step(f"p{at}", "softmax", {"values": f"p{at - 1}" if at else "x"}) for at in range(8)]
        engine = engine_of(pipeline({"x": "float32[-1, 4]"}, {"y": "p7"}, *chain), NumpyParts({}, {}), threads)
        requests, turns = task(ask(engine, tensors(x=X))), 0
        while not requests.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= len(chain)
        np.testing.assert_allclose((await requests)["y"].sum(axis=1), np.ones(6), rtol=1e-5)

    @in_loop
    async def test_light_models_run_without_queue(self, threads: ThreadPoolExecutor) -> None:
        parts = two_models()
        parts.runs_at_once = True
        engine = engine_of(pipeline(["x"], {"p": "p"}, *CHAIN[:3]), parts, threads)
        timings = Timings()
        answer = await ask(engine, tensors(x=X), timings)
        raw = np.exp(X @ A @ B)
        np.testing.assert_allclose(answer["p"], raw / raw.sum(axis=1, keepdims=True), rtol=1e-5)
        assert [name for name, _ in parts.requests] == ["a", "b"]
        assert [name for name, *_ in timings.steps or []] == ["one", "two", "p"]

    @in_loop
    async def test_changed_model_is_refused_or_followed(self, threads: ThreadPoolExecutor) -> None:
        parts = two_models()
        engine = engine_of(pipeline(["x"], {"y": "one"}, CHAIN[0]), parts, threads)
        parts.specs["a"] = tensor_spec(4, 3)
        assert (await ask(engine, tensors(x=X)))["y"].shape == (6, 3)
        parts.specs["a"] = tensor_spec(4, 2)
        with pytest.raises(ModelFailed, match='step "one": its model has other inputs or outputs'):
            await ask(engine, tensors(x=X))

    @in_loop
    async def test_ended_pipeline_refuses_requests(self, threads: ThreadPoolExecutor) -> None:
        engine = engine_of(pipeline(["x"], {"y": "one"}, CHAIN[0]), two_models(), threads)
        engine.end_requests()
        with pytest.raises(Draining):
            await ask(engine, tensors(x=X))

    @in_loop
    async def test_wrong_shape_of_input_is_refused(self, threads: ThreadPoolExecutor) -> None:
        engine = engine_of(pipeline(["x"], {"y": "one"}, CHAIN[0]), two_models(), threads)
        with pytest.raises(InvalidInput, match=r"inputs.x: expected the shape \[-1, 4\], got \[6, 3\]"):
            await ask(engine, tensors(x=X[:, :3]))


def _embed(request: TextRequest) -> EmbedAnswer:
    return EmbedAnswer(np.array([[len(text), text.count("a")] for text in request.texts], np.float32), 3)


def _classify(request: TextRequest) -> ClassifyAnswer:
    return ClassifyAnswer([[("good", 0.75), ("bad", 0.25)] for _ in request.texts], 3)


def _score(request: PairRequest) -> ScoreAnswer:
    return ScoreAnswer([float(len(query) * len(text)) for query, text in request.pairs], 1)


TEXTS = NumpyParts(
    {
        "embed": text_spec("embed", size=2),
        "mood": text_spec("classify", ("bad", "good")),
        "rank": text_spec("classify", ("score",)),
    },
    {"embed": _embed, "mood": _classify, "rank": _score},
)


class TestTexts:
    @in_loop
    async def test_pipeline_that_embeds_is_an_embedding_model(self, threads: ThreadPoolExecutor) -> None:
        entry = pipeline(
            ["text"],
            {"embeddings": "unit"},
            call("e", "embed", {"text": "text"}),
            step("unit", "normalize", {"values": "e"}),
        )
        engine = engine_of(entry, TEXTS, threads)
        assert engine.model.spec.task == "embed"
        answer = await ask(engine, TextRequest(["aaa", "bbbb"]))
        np.testing.assert_allclose(answer.embeddings, [[0.5**0.5, 0.5**0.5], [1, 0]], rtol=1e-6)
        by_name = await ask(engine, tensors(text=strings("aaa", "bbbb")))
        np.testing.assert_array_equal(by_name["embeddings"], answer.embeddings)

    @in_loop
    async def test_pipeline_that_classifies_is_a_classifier(self, threads: ThreadPoolExecutor) -> None:
        entry = pipeline(["text"], {"moods": "m"}, call("m", "mood", {"text": "text"}))
        engine = engine_of(entry, TEXTS, threads)
        spec = engine.model.spec
        assert (spec.task, spec.text is not None and spec.text.labels) == ("classify", ("bad", "good"))
        answer = await ask(engine, TextRequest(["x"], top_k=1))
        assert answer == ClassifyAnswer([[("good", 0.75)]])
        assert await ask(engine, tensors(text=strings("x"))) == {"moods": [{"good": 0.75, "bad": 0.25}]}

    @in_loop
    async def test_embed_then_classify_by_tensors(self, threads: ThreadPoolExecutor) -> None:
        parts = NumpyParts(
            {**TEXTS.specs, "head": tensor_spec(2, 3)},
            {"embed": _embed, "head": product(np.ones((2, 3), np.float32))},
        )
        entry = pipeline(["text"], {"y": "h"}, call("e", "embed", {"text": "text"}), call("h", "head", {"x": "e"}))
        answer = await ask(engine_of(entry, parts, threads), tensors(text=strings("ab")))
        np.testing.assert_array_equal(answer["y"], [[3, 3, 3]])

    @in_loop
    async def test_chunks_are_ranked_for_their_query(self, threads: ThreadPoolExecutor) -> None:
        entry = pipeline(
            {"query": "text", "text": "text"},
            {"scores": "r", "chunks": "c", "rows": "c.rows"},
            step("c", "chunk", {"text": "text"}, chunk_size=5),
            call("r", "rank", {"query": "query", "text": "c", "rows": "c.rows"}),
        )
        answer = await ask(
            engine_of(entry, TEXTS, threads), tensors(query=strings("q", "qq"), text=strings("one two", "three"))
        )
        assert answer["chunks"].tolist() == ["one", "two", "three"]
        assert (answer["rows"].tolist(), answer["scores"].tolist()) == ([0, 0, 1], [3.0, 3.0, 10.0])

    @in_loop
    async def test_options_of_text_requests_are_refused(self, threads: ThreadPoolExecutor) -> None:
        engine = engine_of(pipeline(["text"], {"moods": "m"}, call("m", "mood", {"text": "text"})), TEXTS, threads)
        with pytest.raises(InvalidInput, match="truncate"):
            await ask(engine, TextRequest(["x"], truncate=False))
        with pytest.raises(InvalidInput, match="got left; set it in its steps"):
            await ask(engine, TextRequest(["x"], truncate="left"))
        with pytest.raises(InvalidInput, match="model"):
            await ask(engine, PairRequest([("a", "b")]))


def _recording(threads: ThreadPoolExecutor, names: list[str]) -> Any:
    submit = threads.submit

    def record(work: Any, *arguments: Any) -> Any:
        names.append(work.__name__)
        return submit(work, *arguments)

    return record
