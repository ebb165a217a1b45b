"""Measure `roundhouse deploy` on a local Ray cluster beside a plain application of Ray Serve, and beside no Ray.

Each server on Ray has a cluster of its own, with all its processes on the core of the server. Both clusters run during
all rounds, because a paused cluster loses its nodes.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.extensions.ray_clusters import PEER, ServerOnRay, plain_ray_serve, roundhouse_on_ray, with_two_replicas
from tools.bench.shared import wrk
from tools.bench.shared.cores import ALL_CORES, LOAD_CORES, on_cores
from tools.bench.shared.corpus import DECK, mixed_texts
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_ROUNDS = 5
_SECONDS = 2
_CONNECTIONS = 32
_TENSOR = orjson.dumps({"input_data": [float(number % 17) for number in range(64)]})
_OURS, _PEER, _ALONE = "ours", "peer", "without Ray"

Loads = Mapping[str, list[wrk.Load]]


@dataclass(frozen=True, slots=True)
class _TextLoad:
    """The figures of one round of texts. `cpu_ms`: of all processes of the server, per text."""

    per_second: float
    cpu_ms: float


TextLoads = Mapping[str, list[_TextLoad]]


def measure_ray(folder: Path, models: Path) -> list[Row]:
    """Return the rows of texts, of tensors, of two replicas, and of the latency that Ray adds."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("on Ray", "-", compared=wrk.MISSING)]
    texts, tensors = models / "minilm-onnx", models / "digits"
    with ExitStack() as stack:
        ours = stack.enter_context(roundhouse_on_ray(folder, texts, tensors))
        peer = stack.enter_context(plain_ray_serve(folder, texts, tensors))
        alone = stack.enter_context(roundhouse([str(tensors)]))
        _check_same_answers(ours.server, peer.server)
        ours.pin_all()
        peer.pin_all()
        rows = [
            _text_row(_text_loads(ours.server, peer.server)),
            *_tensor_rows(ours.server, peer.server, alone),
        ]
        return [*rows, _scaling_row(with_two_replicas(ours, folder, texts, tensors))]


def _check_same_answers(ours: RunningServer, peer: RunningServer) -> None:
    """Raise RuntimeError where the servers do not run the same models."""
    text = orjson.dumps({"text": mixed_texts()[0]})
    rows = [np.array(server.post(path, text)["embeddings"][0]) for server, path in _text_paths(ours, peer).values()]
    labels = [server.post(path, _TENSOR)["output_data"] for server, path in _tensor_paths(ours, peer).values()]
    if np.dot(*rows) < 0.9999 or labels[0] != labels[1]:
        raise RuntimeError(f"{PEER} answers something else: {labels}, {np.dot(*rows)}")


def _text_paths(ours: RunningServer, peer: RunningServer) -> dict[str, tuple[RunningServer, str]]:
    return {_OURS: (ours, "/models/one/infer"), _PEER: (peer, "/texts/infer")}


def _tensor_paths(ours: RunningServer, peer: RunningServer) -> dict[str, tuple[RunningServer, str]]:
    return {_OURS: (ours, "/models/digits/infer"), _PEER: (peer, "/tensors/infer")}


def _text_loads(ours: RunningServer, peer: RunningServer) -> TextLoads:
    ways = {
        name: partial(_embed, server, path, _CONNECTIONS, LOAD_CORES)
        for name, (server, path) in _text_paths(ours, peer).items()
    }
    return in_turn(ways, _ROUNDS)


def _embed(server: RunningServer, path: str, connections: int, cores: frozenset[int]) -> _TextLoad:
    """Send eight texts over each connection, one after the other, in the steady state."""
    count = 8 * connections
    assert count % DECK == 0, "each round has the same work"
    requests = [request_of(path, orjson.dumps({"text": text})) for text in mixed_texts()[:count]]
    before_s = server.cpu_s()
    with on_cores(cores):
        seconds = asyncio.run(closed_loop(server.port, requests, connections, count, warm=connections))
    # Those of the warm-up, and those in progress at the last counted answer.
    all_texts = count + 2 * connections
    return _TextLoad(count / seconds, (server.cpu_s() - before_s) / all_texts * 1e3)


def _text_row(loads: TextLoads) -> Row:
    times = ratio(_values(loads, _OURS, "per_second"), _values(loads, _PEER, "per_second"))
    cpu = ratio(_values(loads, _OURS, "cpu_ms"), _values(loads, _PEER, "cpu_ms"))
    return Row(
        "MiniLM (ONNX) on Ray, texts of 4 to 130 words, one a request: 32 connections",
        f"{_described_texts(loads, _OURS)}: {times:.2f} times, CPU {percent(cpu)}",
        "≥ 2 times",
        f"{PEER}: {_described_texts(loads, _PEER)}",
    )


def _tensor_rows(ours: RunningServer, peer: RunningServer, alone: RunningServer) -> list[Row]:
    """Measure 64 floats at 32 connections, and at one beside a server without Ray."""
    paths = _tensor_paths(ours, peer)
    many = _pressed(paths, _CONNECTIONS)
    one = _pressed({**paths, _ALONE: (alone, paths[_OURS][1])}, 1)
    times = ratio(_values(many, _OURS, "per_second"), _values(many, _PEER, "per_second"))
    tail = ratio(_values(many, _OURS, "p99_ms"), _values(many, _PEER, "p99_ms"))
    added_ms = median(on_ray.p50_ms - without.p50_ms for on_ray, without in zip(one[_OURS], one[_ALONE], strict=True))
    return [
        Row(
            "64 floats in JSON on Ray, 32 connections",
            f"{_described(many, _OURS)}: {times:.2f} times, p99 {percent(tail)}",
            "≥ 1.5 times, p99 ≤ 50 %",
            f"the same application: {_described(many, _PEER)}",
        ),
        Row(
            "the same, one connection: median latency that Ray adds",
            f"{added_ms:.2f} ms",
            "-",
            f"{_p50(one, _OURS)} on Ray, {_p50(one, _ALONE)} without Ray; the same application {_p50(one, _PEER)}",
        ),
    ]


def _pressed(paths: Mapping[str, tuple[RunningServer, str]], connections: int) -> Loads:
    """Warm up for a second, then measure the rounds."""
    for server, path in paths.values():
        wrk.press(server, path, _TENSOR, connections, 1)
    ways: dict[str, Callable[[], wrk.Load]] = {
        name: partial(wrk.press, server, path, _TENSOR, connections, _SECONDS) for name, (server, path) in paths.items()
    }
    return in_turn(ways, _ROUNDS)


def _scaling_row(ours: ServerOnRay) -> Row:
    """Measure replicas on cores of their own, which they share with the ingress and the load on two cores."""
    what = "the same texts, two replicas of one core each, 32 connections a replica"
    if len(ALL_CORES) < 2:
        return Row(what, "-", compared="this machine has one core for the bench")

    def load(model: str, replicas: int) -> _TextLoad:
        ours.pin_replicas(f"model-{model}")
        return _embed(ours.server, f"/models/{model}/infer", replicas * _CONNECTIONS, ALL_CORES)

    loads = in_turn({"one": partial(load, "one", 1), "two": partial(load, "two", 2)}, _ROUNDS)
    times = ratio(_values(loads, "two", "per_second"), _values(loads, "one", "per_second"))
    return Row(
        what,
        f"{_described_texts(loads, 'two')}: {times:.2f} times",
        "≥ 1.8 times",
        f"one replica: {_described_texts(loads, 'one')}; ingress and load run on the same cores",
    )


def _described_texts(loads: TextLoads, name: str) -> str:
    per_second, cpu_ms = (median(_values(loads, name, field)) for field in ("per_second", "cpu_ms"))
    return f"{per_second:.1f} texts/s, {cpu_ms:.0f} ms CPU"


def _described(loads: Loads, name: str) -> str:
    per_second, p99_ms = (median(_values(loads, name, field)) for field in ("per_second", "p99_ms"))
    return f"{per_second:,.0f} req/s, p99 {p99_ms:.1f} ms, {median(_values(loads, name, 'cpu_us')):,.0f} µs CPU"


def _p50(loads: Loads, name: str) -> str:
    return f"{median(_values(loads, name, 'p50_ms')):.2f} ms"


def _values(loads: Loads | TextLoads, name: str, field: str) -> Sequence[float]:
    return [getattr(load, field) for load in loads[name]]
