"""Test that batches of large tensors use leased buffers, without allocations in steady state."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np

from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.onnx.registry import OnnxRegistry
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.merging.rows import merge
from frameworks.types import Array, SequenceSpec, TensorBatch
from memory.pooled_arrays import PAYS_FROM_BYTES, PooledArrays
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, TensorPool
from tests.frameworks.models.loading import GIB, NO_COPIES, placed
from tests.frameworks.scheduling.batch.costs import fixed_cost
from tests.support.fake_probe import FakeProbe
from tests.support.loops import in_loop, soon
from tests.support.models import onnx_graphs

WIDTH = PAYS_FROM_BYTES // 4 // 4
CALLERS = 8


@in_loop
async def test_steady_state_batch_allocates_no_tensor(tmp_path: Path) -> None:
    pool = TensorPool(MemorySettings())
    arrays = PooledArrays(pool)
    path = onnx_graphs.save(onnx_graphs.add(("n", WIDTH)), tmp_path)
    devices = DeviceManager(FakeProbe())
    registry = OnnxRegistry(devices, PerformanceSettings(intra_op_threads=1), GIB, NO_COPIES, arrays=arrays)
    model = placed(registry, OnnxModelEntry(name="m", path=path), path, devices)
    model.warm_up()
    sizes: Counter[int] = Counter()
    # A batch waits for all callers, so that all batches are equal.
    limits = BatchLimits(CALLERS, max_delay_s=5.0)
    dispatcher = Dispatcher(
        "m", [BatchWorker("m", model)], model.spec, limits, 1.0, BatchCounts(sizes), SharedDevice(arrays)
    )
    dispatcher._cost = fixed_cost()
    session = onnx_graphs.session(path)
    requests = [{name: row(2 * caller + i) for i, name in enumerate("ab")} for caller in range(CALLERS)]
    together = {name: np.concatenate([request[name] for request in requests]) for name in "ab"}
    alone = dict(zip(("sum", "product"), session.run(None, together), strict=True))
    try:
        for round_ in range(4):
            results = await asyncio.gather(*(dispatcher.submit(TensorBatch(dict(each))) for each in requests))
            for caller, result in enumerate(results):
                for name, expected in alone.items():
                    got = np.asarray(result[name])
                    np.testing.assert_array_equal(got, expected[caller : caller + 1], strict=True)
            del results, result, got
            stats = pool.stats()[HOST]
            # Two inputs and two outputs per batch.
            assert (stats.misses, stats.hits) == (4, 4 * round_)
            # The worker thread reports a result before it releases it.
            await soon(lambda: pool.stats()[HOST].leases == 0)
    finally:
        await dispatcher.close()
    assert sizes == {CALLERS: 4}


@in_loop
async def test_answer_stays_valid_while_caller_keeps_it(tmp_path: Path) -> None:
    pool = TensorPool(MemorySettings())
    path = onnx_graphs.save(onnx_graphs.add(("n", WIDTH)), tmp_path)
    devices = DeviceManager(FakeProbe())
    registry = OnnxRegistry(devices, PerformanceSettings(intra_op_threads=1), GIB, NO_COPIES, arrays=PooledArrays(pool))
    model = placed(registry, OnnxModelEntry(name="m", path=path), path, devices)
    model.warm_up()
    limits = BatchLimits(CALLERS, max_delay_s=5.0)
    dispatcher = Dispatcher(
        "m", [BatchWorker("m", model)], model.spec, limits, 1.0, BatchCounts(), SharedDevice(PooledArrays(pool))
    )
    dispatcher._cost = fixed_cost()
    kept: list[tuple[Array, float]] = []
    try:
        for number in range(3):
            request = {name: np.full((1, WIDTH), number + 1, np.float32) for name in "ab"}
            pending = (dispatcher.submit(TensorBatch(dict(request), ("sum",))) for _ in range(CALLERS))
            results = await asyncio.gather(*pending)
            kept.append((np.asarray(results[number]["sum"]), 2.0 * (number + 1)))
            del results
            await soon(lambda: pool.stats()[HOST].leases == len(kept))
    finally:
        await dispatcher.close()
    for array, expected in kept:
        assert (array == expected).all()


def test_padded_rows_use_leased_buffer() -> None:
    pool = TensorPool(MemorySettings())
    sequence = SequenceSpec(1, {"x": 7}, unpadded_because=None)
    rows = [TensorBatch({"x": row(i)[:, : WIDTH - i]}) for i in range(5)]
    plain = merge(rows, sequence)
    # Old content of the buffer must not appear in the batch.
    PooledArrays(pool).empty((5, WIDTH), np.dtype(np.float32)).fill(3)
    pooled = merge(rows, sequence, PooledArrays(pool))
    assert isinstance(plain, TensorBatch)
    assert isinstance(pooled, TensorBatch)
    np.testing.assert_array_equal(np.asarray(pooled.inputs["x"]), np.asarray(plain.inputs["x"]), strict=True)
    assert (pool.stats()[HOST].misses, pool.stats()[HOST].hits) == (1, 1)


def row(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((1, WIDTH), np.float32)
