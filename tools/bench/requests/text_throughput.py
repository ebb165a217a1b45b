"""Measure texts per second, one text per request, beside other servers and the library alone."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.peers.start import enter, enter_peer, litserve, sentence_transformers
from tools.bench.requests.in_process import in_process
from tools.bench.shared.cores import ALL_CORES, LOAD_CORES, on_cores
from tools.bench.shared.corpus import DECK, mixed_texts
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_ROUNDS = 3
_CONNECTIONS = 32
_BURST_CONNECTIONS = 256
_LABELS = {"onnx": "ONNX", "torch": "PyTorch"}
_FOLDERS = {"onnx": "minilm-onnx", "torch": "minilm"}
_OURS = "ours"
_PEERS = ("FastAPI + sentence-transformers", "LitServe (batches of 32)")
_TWO_CORES = """
[performance]
intra_op_threads = 2

[[models.onnx_models]]
name = "minilm-onnx"
path = {path}
instances = 2
"""

Rates = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Way:
    """One server with the model and its requests, paused unless it is measured."""

    server: RunningServer
    requests: Sequence[bytes]
    load_cores: frozenset[int] = LOAD_CORES

    def steady(self, decks: int) -> float:
        """Return the texts per second at 32 connections."""
        requests = self.requests[: decks * DECK]
        return self._rate(requests, _CONNECTIONS, warm=_CONNECTIONS)

    def single(self, decks: int) -> float:
        """Return the texts per second at one connection."""
        return self._rate(self.requests[: decks * DECK], 1, warm=1)

    def burst(self) -> float:
        """Return the texts per second of all requests at once."""
        return self._rate(self.requests, _BURST_CONNECTIONS, 0)

    def _rate(self, requests: Sequence[bytes], connections: int, warm: int) -> float:
        with self.server.awake(), on_cores(self.load_cores):
            return len(requests) / asyncio.run(
                closed_loop(self.server.port, requests, connections, len(requests), warm)
            )


def measure_text_throughput(models: Path) -> list[Row]:
    """Return the rows of both MiniLMs on one core, and of the ONNX one on two."""
    texts = mixed_texts()
    return [
        *_one_core_rows(models, "onnx", texts, ("≥ 93 %", "≥ 96 %")),
        *_one_core_rows(models, "torch", texts, ("≥ 90 %", "≥ 95 %")),
        *_two_core_rows(models, texts),
    ]


def _one_core_rows(models: Path, framework: str, texts: list[str], targets: tuple[str, str]) -> list[Row]:
    folder = models / _FOLDERS[framework]
    with ExitStack() as stack:
        limit = stack.enter_context(in_process(framework, folder))
        _, (expected,) = limit.embed(texts[:1])
        ours = _way(stack, _OURS, roundhouse([str(folder)]), f"/models/{folder.name}/infer", texts, expected)
        assert ours is not None
        ways: dict[str, Callable[[], float]] = {
            "limit": lambda: len(texts) / limit.embed(texts)[0],
            "steady": partial(ours.steady, decks=2),
            "burst": ours.burst,
        }
        peers = (sentence_transformers(models / _FOLDERS["torch"]), litserve(framework, folder))
        for name, starting in zip(_PEERS, peers, strict=True):
            peer = _way(stack, name, starting, "/infer", texts, expected)
            if peer is not None:
                ways[name] = partial(peer.steady, decks=1)
        rates = in_turn(ways, _ROUNDS)
    beside = [_beside(rates, name) for name in _PEERS]
    label = f"MiniLM ({_LABELS[framework]}), texts of 4 to 130 words, one a request"
    return [
        _row(f"{label}: 32 connections", rates, "steady", targets[0], beside),
        _row("the same: a burst of 512 at 256 connections", rates, "burst", targets[1]),
    ]


def _two_core_rows(models: Path, texts: list[str]) -> list[Row]:
    """Measure with servers and load on both cores."""
    what = "MiniLM (ONNX) on two cores, `instances = 2`: 32 connections"
    if len(ALL_CORES) != 2:
        return [Row(what, "-", compared=f"this machine has {len(ALL_CORES)} cores for the bench")]
    folder = models / _FOLDERS["onnx"]
    with ExitStack() as stack:
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "config.toml"
        config.write_text(_TWO_CORES.format(path=orjson.dumps(str(folder)).decode()), encoding="utf-8")
        two_sessions = stack.enter_context(in_process("onnx", folder, sessions=2, cores=ALL_CORES))
        two_threads = stack.enter_context(in_process("onnx", folder, threads=2, cores=ALL_CORES))
        _, (expected,) = two_threads.embed(texts[:1])
        starting = roundhouse(config=config, cores=ALL_CORES)
        ours = _way(stack, _OURS, starting, f"/models/{folder.name}/infer", texts, expected, ALL_CORES)
        assert ours is not None
        ways: dict[str, Callable[[], float]] = {
            "two sessions of one thread": lambda: len(texts) / two_sessions.embed(texts)[0],
            "steady": partial(ours.steady, decks=2),
            "one session of two threads": lambda: len(texts) / two_threads.embed(texts)[0],
        }
        rates = in_turn(ways, _ROUNDS)
    better = max(("two sessions of one thread", "one session of two threads"), key=lambda name: median(rates[name]))
    return [_row(what, {**rates, "limit": rates[better]}, "steady", "≥ 92 %", [f"that is {better}"])]


def _way(
    stack: ExitStack,
    name: str,
    starting: AbstractContextManager[RunningServer],
    path: str,
    texts: Sequence[str],
    expected: Sequence[float],
    load_cores: frozenset[int] = LOAD_CORES,
) -> Way | None:
    """Return None if a peer does not run here. Raises if its answers differ from those of the library."""
    server = enter(stack, starting) if name == _OURS else enter_peer(stack, name, starting)
    if server is None:
        return None
    with server.awake():
        answer = server.post(path, orjson.dumps({"text": texts[0]}))
    if np.dot(answer["embeddings"][0], expected) < 0.9999:
        raise RuntimeError(f"{name} embeds a text differently")
    return Way(server, [request_of(path, orjson.dumps({"text": text})) for text in texts], load_cores)


def _row(what: str, rates: Rates, way: str, target: str, beside: Sequence[str] = ()) -> Row:
    share = ratio(rates[way], rates["limit"])
    limit = f"in-process limit {median(rates['limit']):.1f} texts/s"
    figure = f"{median(rates[way]):.1f} texts/s, {percent(share)} of the limit"
    return Row(what, figure, f"{target} of the limit", "; ".join([limit, *beside]))


def _beside(rates: Rates, name: str) -> str:
    if name not in rates:
        return f"{name} -"
    return f"{name} {median(rates[name]):.1f} texts/s: {ratio(rates['steady'], rates[name]):.1f} times"
