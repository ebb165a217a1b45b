"""Test steps that search a collection: faults at the start, results, errors and cancellation."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extensions.search.collections.collection import Collection, open_collection
from extensions.search.collections.contract import CollectionFailed, CollectionSettings, Metric
from frameworks.core.errors import Draining, InvalidInput, ModelFailed, ModelLoading, Overloaded, RoundhouseError
from frameworks.core.timings import Timings
from frameworks.core.vector_search import Record
from frameworks.types import TensorType
from tests.support.loops import in_loop
from tests.support.pipelines import NumpyParts, ask, call, checked, engine_of, faults_of, pipeline, search, tensor_spec
from tests.support.pipelines import tensors as given

DOCS = {"docs": 4}
OUTPUTS = {"texts": "find", "scores": "find.scores", "ids": "find.ids", "rows": "find.rows"}
VECTORS = np.random.default_rng(3).normal(size=(30, 4)).astype(np.float32)


class Opened:
    """One collection, or the error of its search."""

    def __init__(self, found: Collection | RoundhouseError) -> None:
        self._found = found

    @property
    def dimensions(self) -> Mapping[str, int]:
        return DOCS

    def opened(self, name: str) -> Collection:
        assert name == "docs"
        if isinstance(self._found, RoundhouseError):
            raise self._found
        return self._found


async def run(entry: Any, collections: Opened, timings: Timings | None = None, **inputs: Any) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return await ask(engine_of(entry, NumpyParts({}, {}), threads, collections), given(**inputs), timings)


async def filled(folder: Path) -> Collection:
    collection = await open_collection(CollectionSettings("docs", folder, 4, Metric.DOT))
    await collection.upsert(
        [Record(f"r{at}", row, f"text {at}" if at % 2 else None, {"at": at}) for at, row in enumerate(VECTORS)]
    )
    return collection


class TestFaults:
    def test_types_of_search_step_are_known(self) -> None:
        typed = checked(pipeline(["v"], OUTPUTS, search("find", "docs", "v")), {}, DOCS)
        assert typed.inputs == {"v": TensorType("float32", (-1, 4))}
        assert [(kind.dtype, kind.shape) for kind in typed.outputs.values() if isinstance(kind, TensorType)] == [
            ("string", (-1,)), ("float32", (-1,)), ("string", (-1,)), ("int64", (-1,)),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("step", "fault"),
        [
            (
                search("find", "dogs", "v"),
                'steps[0].collection: expected a collection of the server, got "dogs"; did you mean "docs"?',
            ),
            (
                search("find", "docs", "v", function="f"),
                "steps[0]: expected exactly one of model, builtin, function and collection; keep one of them",
            ),
            (
                search("find", "docs", "v", size=[1, 1]),
                "steps[0].size: expected a key of a collection, got size; its keys are filter, top_k",
            ),
            (search("find", "docs", "v", top_k=10_001), "steps[0].top_k: expected at most 10000, got 10001"),
            (
                search("find", "docs", "v", filter={"year": {"gt": "x"}}),
                "steps[0].filter.year.gt: expected a number, got a string",
            ),
            (
                search("find", "docs", "v", filter={"year": {"gtt": 1}}),
                'steps[0].filter.year.gtt: unknown field; did you mean "filter.year.gt"?',
            ),
            (
                {"name": "find", "collection": "docs", "inputs": {"vector": "v"}},
                (
                    'steps[0].inputs.vector: expected an input of the step, got "vector"; did you mean "vectors"?\n'
                    "steps[0].inputs: expected the input vectors, float32[-1, 4], got none; wire it"
                ),
            ),
        ],
        ids=["name", "two kinds", "key", "top_k", "filter value", "filter operator", "input"],
    )  # fmt: skip
    def test_fault_has_place_and_remedy(self, step: Any, fault: str) -> None:
        assert "\n".join(faults_of(pipeline(["v"], {"t": "find"}, step), collections=DOCS)) == fault

    def test_wrong_dimensions_are_faults(self) -> None:
        entry = pipeline(["x"], {"t": "find"}, call("one", "a", {"x": "x"}), search("find", "docs", "one"))
        [fault] = faults_of(entry, {"a": tensor_spec(2, 3)}, collections=DOCS)
        assert fault == (
            'steps[1].inputs.vectors: expected float32[-1, 4], got float32[-1, 3] from "one"; wire another value'
        )
        assert faults_of(entry, {"a": tensor_spec(2, 3)}, collections={"docs": -1}) == []


class TestSearches:
    @in_loop
    async def test_hits_equal_best_products(self, tmp_path: Path) -> None:
        collection, queries = await filled(tmp_path), VECTORS[:3] + np.float32(0.5)
        timings = Timings()
        entry = pipeline(["v"], OUTPUTS, search("find", "docs", "v", top_k=4))
        found = await run(entry, Opened(collection), timings, v=queries)
        await collection.close()
        scores = queries @ VECTORS.T
        best = np.argsort(-scores, axis=1)[:, :4]
        assert found["ids"].tolist() == [f"r{at}" for at in best.ravel()]
        assert found["texts"].tolist() == [f"text {at}" if at % 2 else "" for at in best.ravel()]
        np.testing.assert_allclose(found["scores"], np.take_along_axis(scores, best, 1).ravel(), rtol=1e-5, atol=1e-6)
        assert found["rows"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert [found[name].dtype.name for name in OUTPUTS] == ["object", "float32", "object", "int64"]
        assert timings.steps is not None
        assert [name for name, *_ in timings.steps] == ["find"]

    @in_loop
    async def test_filter_leaves_fewer_hits(self, tmp_path: Path) -> None:
        collection = await filled(tmp_path)
        entry = pipeline(["v"], OUTPUTS, search("find", "docs", "v", filter={"at": {"lt": 2}}))
        found = await run(entry, Opened(collection), v=VECTORS[:2])
        empty = await run(entry, Opened(collection), v=VECTORS[:0])
        await collection.close()
        assert [sorted(found["ids"][found["rows"] == row]) for row in (0, 1)] == [["r0", "r1"]] * 2
        assert [empty[name].shape for name in OUTPUTS] == [(0,)] * 4

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (Overloaded('collection "docs" (searches): full', 1.0), Overloaded),
            (ModelLoading('collection "docs" is being opened'), ModelLoading),
            (Draining('collection "docs"'), Draining),
            (CollectionFailed('collection "docs": disk'), ModelFailed),
        ],
        ids=["overloaded", "opening", "closing", "failed"],
    )
    @in_loop
    async def test_errors_name_the_step_only(self, error: RoundhouseError, kind: type[RoundhouseError]) -> None:
        with pytest.raises(kind, match='step "find": ') as caught:
            await run(pipeline(["v"], OUTPUTS, search("find", "docs", "v")), Opened(error), v=VECTORS[:1])
        assert "docs" not in caught.value.message

    @in_loop
    async def test_too_many_hits_are_refused(self) -> None:
        entry = pipeline(["v"], OUTPUTS, search("find", "docs", "v", top_k=10_000))
        with pytest.raises(InvalidInput, match=r'^vectors: expected at most 104 rows, got 105; .* \(step "find"\)$'):
            await run(entry, Opened(ModelFailed("not reached")), v=np.zeros((105, 4), np.float32))

    @in_loop
    async def test_numbers_that_are_none_name_vectors(self, tmp_path: Path) -> None:
        collection = await filled(tmp_path)
        entry = pipeline(["v"], OUTPUTS, search("find", "docs", "v"))
        with pytest.raises(InvalidInput, match=r'^vectors: expected numbers .* \(step "find"\)$'):
            await run(entry, Opened(collection), v=np.full((1, 4), np.nan, np.float32))
        await collection.close()

    @in_loop
    async def test_parallel_searches_share_a_batch(self, tmp_path: Path) -> None:
        collection = await filled(tmp_path)
        outputs = {"one": "first.ids", "two": "second.ids"}
        steps = search("first", "docs", "v", top_k=1), search("second", "docs", "v", top_k=2)
        found = await run(pipeline(["v"], outputs, *steps), Opened(collection), v=VECTORS[:1])
        info = await collection.info()
        await collection.close()
        assert found["two"].tolist()[:1] == found["one"].tolist()
        assert (info.searches, info.batches) == (2, 1)

    @in_loop
    async def test_cancelled_search_ends_the_pipeline(self, tmp_path: Path) -> None:
        collection = await filled(tmp_path)
        entry = pipeline(["v"], OUTPUTS, search("find", "docs", "v"))
        task = asyncio.create_task(run(entry, Opened(collection), v=VECTORS[:1]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await collection.info()).waiting == 0
        await collection.close()
