"""Compare this checkout with another one: `python -m tools.bench.compare ../older [PART ...]`.

Servers of both checkouts run at the same time with the same models. Rounds alternate, so a slow minute of the machine
affects both. A ratio is the median of the ratios within a round; below 1 is better.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import grpc
import orjson

from tools.bench.requests.grpc_requests import CALLS, call_cpu_us, grpc_requests
from tools.bench.shared import wrk
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import mixed_texts, short_texts
from tools.bench.shared.language_models import LARGE, SMALL, mixed_prompts, save_llama
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.models import write_image_model, write_vector_model
from tools.bench.shared.open_inference import Way, image_ways, vector_ways
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import ROOT, RunningServer, free_port, roundhouse
from tools.bench.text_generation.generation import llama_config

_NEW_TOKENS = 32
_MODELS = ROOT / "models"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one round. `cpu_us`: of the server, per request (of a start: in all); `wall_us`: likewise."""

    cpu_us: float
    wall_us: float


Round = Callable[[], Cost]
Rounds = tuple[Round, Round]
"""One round with the other checkout, and one with this."""


def main() -> int:
    """Print a table of ratios."""
    parts = {"startup": _startup, "tensors": _tensors, "images": _images, "texts": _texts, "generation": _generation}
    parser = argparse.ArgumentParser(prog="python -m tools.bench.compare", description="Compare two checkouts.")
    parser.add_argument("checkout", type=Path, help="folder of the other checkout")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    roots = (arguments.checkout.resolve(), ROOT)
    print("| what | CPU before | CPU now | ratio | time before | time now | ratio |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts or parts:
            for what, rounds in parts[part](roots, Path(folder)):
                _print(what, rounds, arguments.rounds)
    return 0


def _print(what: str, rounds: Rounds, count: int) -> None:
    """Warm up, measure and print a row."""
    for warm_up in rounds:
        warm_up()
    before, now = in_turn({"before": rounds[0], "now": rounds[1]}, count).values()
    cells = []
    for field in ("cpu_us", "wall_us"):
        old, new = ([getattr(cost, field) for cost in costs] for costs in (before, now))
        cells += [_duration(median(old)), _duration(median(new)), f"{ratio(new, old):.3f}"]
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


def _duration(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1e4 else f"{microseconds / 1e3:.1f} ms"


Part = Iterator[tuple[str, Rounds]]


def _startup(roots: Sequence[Path], folder: Path) -> Part:
    """Process start to ready, with one small ONNX model, and with MiniLM (PyTorch)."""
    vector = folder / "start.onnx"
    write_vector_model(vector)
    for what, model in (("ONNX only", vector), ("MiniLM (PyTorch)", _MODELS / "minilm")):
        yield f"{what}: start to ready", _both(partial(_start, root, model) for root in roots)


def _start(root: Path, model: Path) -> Cost:
    with roundhouse([str(model)], cores=None, root=root) as server:
        return Cost(server.cpu_s() * 1e6, (time.perf_counter() - server.started_s) * 1e6)


def _tensors(roots: Sequence[Path], folder: Path) -> Part:
    """16 floats by each protocol."""
    model = folder / "vector.onnx"
    write_vector_model(model)
    ports = [free_port() for _ in roots]
    with _servers(roots, [str(model)], grpc_ports=ports) as servers, ExitStack() as stack:
        for name, way in vector_ways().items():
            for connections in (32, 1):
                yield f"16 floats, /{name}, {connections} connections", _pressed(servers, way, connections)
        stack.enter_context(on_cores(LOAD_CORES))
        channels = [stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}")) for port in ports]
        for name, (path, request) in grpc_requests().items():
            pairs = zip(servers, channels, strict=True)
            yield (
                f"16 floats, gRPC {name}, 32 in flight",
                _both(partial(_called, server, channel, path, request) for server, channel in pairs),
            )


def _images(roots: Sequence[Path], folder: Path) -> Part:
    """150,528 floats in JSON and in bytes."""
    model = folder / "image.onnx"
    write_image_model(model)
    with _servers(roots, [str(model)]) as servers:
        for name, way in image_ways().items():
            yield f"image of 150,528 floats, /{name}, 8 connections", _pressed(servers, way, 8)


def _texts(roots: Sequence[Path], _folder: Path) -> Part:
    """One text a request and many in one, with both MiniLMs."""
    for name, label in (("minilm-onnx", "ONNX"), ("minilm", "PyTorch")):
        path = f"/models/{name}/infer"
        with _servers(roots, [str(_MODELS / name)]) as servers:
            single = [request_of(path, orjson.dumps({"text": text})) for text in mixed_texts()[:128]]
            yield f"MiniLM ({label}), 32 callers", _looped(servers, single, callers=32, count=256)
            yield f"MiniLM ({label}), 1 caller", _looped(servers, single, callers=1, count=64)
            short = orjson.dumps({"text": short_texts(2000)})
            yield f"MiniLM ({label}), 2,000 texts in one request", _looped(servers, [request_of(path, short)], 1, 1)


def _generation(roots: Sequence[Path], folder: Path) -> Part:
    """Both Llamas, with 16 callers and with one."""
    for shape, counts in ((SMALL, (192, 24)), (LARGE, (48, 6))):
        config = llama_config(folder, save_llama(folder / shape.name, shape))
        with _servers(roots, config=config) as servers:
            for callers, count in zip((16, 1), counts, strict=True):
                rounds = _both(_Generation(server, callers, count).round for server in servers)
                yield f"{shape.label}, {callers} callers, a request of {_NEW_TOKENS} tokens", rounds


@dataclass(slots=True)
class _Generation:
    """Rounds of completions; no prompt occurs twice, and both servers get the same ones."""

    server: RunningServer
    callers: int
    count: int
    seed: int = 0

    def round(self) -> Cost:
        self.seed += 1
        fields = {"model": "llama", "ignore_eos": True, "max_tokens": _NEW_TOKENS, "temperature": 0}
        prompts = mixed_prompts(self.count, self.seed)
        requests = [request_of("/v1/completions", orjson.dumps({"prompt": each} | fields)) for each in prompts]
        return _loop(self.server, requests, self.callers, self.count)


@contextmanager
def _servers(
    roots: Sequence[Path],
    models: Sequence[str] = (),
    config: Path | None = None,
    grpc_ports: Sequence[int | None] = (None, None),
) -> Iterator[list[RunningServer]]:
    """Start a server of each checkout, both on the core that `roundhouse` reserves for servers."""
    with ExitStack() as stack:
        servers = []
        for root, port in zip(roots, grpc_ports, strict=True):
            environment = {} if port is None else {"ROUNDHOUSE_SERVER__GRPC_PORT": str(port)}
            servers.append(stack.enter_context(roundhouse(models, config, root=root, environment=environment)))
        yield servers


def _pressed(servers: Sequence[RunningServer], way: Way, connections: int) -> Rounds:
    path, body, headers = way

    def press(server: RunningServer) -> Cost:
        load = wrk.press(server, path, body, connections, 2, headers)
        return Cost(load.cpu_us, 1e6 / load.per_second)

    return _both(partial(press, server) for server in servers)


def _called(server: RunningServer, channel: grpc.Channel, path: str, request: bytes) -> Cost:
    started_s = time.perf_counter()
    cpu_us = call_cpu_us(server, channel, path, request)
    return Cost(cpu_us, (time.perf_counter() - started_s) / CALLS * 1e6)


def _looped(servers: Sequence[RunningServer], requests: Sequence[bytes], callers: int, count: int) -> Rounds:
    return _both(partial(_loop, server, requests, callers, count) for server in servers)


def _loop(server: RunningServer, requests: Sequence[bytes], callers: int, count: int) -> Cost:
    before_s = server.cpu_s()
    with on_cores(LOAD_CORES):
        seconds = asyncio.run(closed_loop(server.port, requests, callers, count))
    return Cost((server.cpu_s() - before_s) / count * 1e6, seconds / count * 1e6)


def _both(rounds: Iterator[Round]) -> Rounds:
    before, now = rounds
    return before, now


if __name__ == "__main__":
    sys.exit(main())
