"""Measure tokens per second beside llama.cpp's server and OpenVINO GenAI, on one core, with the same weights, prompts
and precision.

`BENCH_ROWS="large-f32 small-f32"` measures these pairs of rows alone, `BENCH_ROUNDS=1` each once, and `BENCH_ISA=avx2`
masks the instructions of all servers. `BENCH_ROWS=narrow` is our own servers of fewer bits beside that of float32.
"""

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gguf import GGMLQuantizationType

from tests.support.gguf_files import write_gguf
from tools.bench.peers.llama_cpp import llama_server
from tools.bench.peers.openvino import openvino_genai
from tools.bench.peers.start import enter, enter_peer
from tools.bench.shared.instruction_sets import is_masked, mask, multiplies_bf16
from tools.bench.shared.language_models import LARGE, SMALL, LlamaShape, save_llama
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import Way, first_words, llama_config

_ROUNDS = 3
_CALLERS = 16
_NARROW, _NARROW_TARGET = "narrow", {"int8": "≥ 2.5 times", "int4": "≥ 2.5 times"}
_OURS, _LLAMA_CPP, _OPENVINO = "ours", "llama.cpp", "OpenVINO"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two rows, with 16 callers and with one. `dtype`: ours. `kind`: of the blocks of the GGUF file. `targets`: beside
    llama.cpp. `counts`: requests in a round. `has_openvino`: whether it is measured too.
    """

    shape: LlamaShape
    dtype: str
    kind: str
    targets: tuple[str, str]
    counts: tuple[int, int] = (48, 4)
    has_openvino: bool = False


_PAIRS = {
    "small-f32": _Pair(SMALL, "f32", "F32", ("≥ 0.9 times", "≥ 0.6 times"), (96, 12), has_openvino=True),
    "large-f32": _Pair(LARGE, "f32", "F32", ("≥ 1.0 times; OpenVINO ≥ 0.9", "≥ 0.95 times"), has_openvino=True),
    "large-bf16": _Pair(LARGE, "bf16", "BF16", ("≥ 1.0 times; OpenVINO ≥ 0.9", "-"), has_openvino=True),
    "large-int8": _Pair(LARGE, "int8", "Q8_0", ("≥ 0.9 times", "≥ 0.9 times")),
    "large-int4": _Pair(LARGE, "int4", "Q4_0", ("≥ 0.9 times", "≥ 0.9 times")),
}


def measure_generation_llama_cpp(folder: Path) -> list[Row]:
    """Return two rows for each model and precision: 16 callers, and one."""
    names = os.environ.get("BENCH_ROWS", "").split()
    known = (*_PAIRS, _NARROW)
    if unknown := [name for name in names if name not in known]:
        raise RuntimeError(f"BENCH_ROWS: expected names of {', '.join(known)}, got {unknown[0]!r}; change it")
    if not names:
        names = [name for name in known if name != "large-bf16" or multiplies_bf16()]
    return [row for name in names for row in (_narrow_rows(folder) if name == _NARROW else _rows(folder, _PAIRS[name]))]


def _narrow_rows(folder: Path) -> list[Row]:
    """Measure one caller of our servers of 8, 4 and 32 bits in turn."""
    model = _model(folder, LARGE)
    dtypes = ("f32", *_NARROW_TARGET)
    with ExitStack() as stack:
        ways = {dtype: _ours(stack, folder, model, dtype) for dtype in dtypes}
        measures = {dtype: _counted(way, 1, _PAIRS["large-f32"].counts[1]) for dtype, way in ways.items()}
        for way in ways.values():
            way.rate(1, 2, 0, 0)  # caches and kernels
        rates = in_turn(measures, num_rounds(_ROUNDS))
    return [
        Row(
            f"{LARGE.label}, {dtype}{_on_core()}: 1 caller beside f32",
            f"{median(rates[dtype]):.1f} tokens/s, {ratio(rates[dtype], rates['f32']):.2f} times",
            target,
            f"f32 {median(rates['f32']):.1f} tokens/s",
        )
        for dtype, target in _NARROW_TARGET.items()
    ]


def _rows(folder: Path, pair: _Pair) -> list[Row]:
    model = _model(folder, pair.shape)
    with ExitStack() as stack:
        rates = _rates(_started(stack, folder, model, pair), pair)
    what = f"{pair.shape.label}, {pair.dtype}{_on_core()}"
    return [
        _row(f"{what}: {callers} caller{'s' * (callers > 1)}", pair, rates, callers, target)
        for callers, target in zip((_CALLERS, 1), pair.targets, strict=True)
    ]


def _started(stack: ExitStack, folder: Path, model: Path, pair: _Pair) -> dict[str, Way]:
    """Start all servers that run here. Raises RuntimeError if the texts of float32 begin differently."""
    ways = {_OURS: _ours(stack, folder, model, pair.dtype)}
    file = _gguf(model)
    peers = {_LLAMA_CPP: llama_server(file, pair.kind)}
    if pair.has_openvino:
        peers[_OPENVINO] = openvino_genai(model, file, pair.dtype)
    for name, server in peers.items():
        peer = enter_peer(stack, name, server)
        if peer is not None:
            ways[name] = Way(peer, {"ignore_eos": True, "cache_prompt": False})
    texts = {name: first_words(way) for name, way in ways.items()}
    for name, text in texts.items():
        if pair.dtype == "f32" and text != texts[_OURS]:
            raise RuntimeError(f"{name} goes on with {text!r}, not with {texts[_OURS]!r}")
    return ways


def _rates(ways: dict[str, Way], pair: _Pair) -> dict[str, list[float]]:
    """Return the tokens per second of each round, by the server and the number of callers."""

    measures = {
        f"{name} {callers}": _counted(way, callers, count)
        for name, way in ways.items()
        for callers, count in zip((_CALLERS, 1), pair.counts, strict=True)
    }
    for way in ways.values():
        way.rate(_CALLERS, _CALLERS, 0, 0)  # caches and kernels
    return in_turn(measures, num_rounds(_ROUNDS))


def _counted(way: Way, callers: int, count: int) -> Callable[[], float]:
    """Return a round: the servers get the same prompts, and no server gets a prompt twice."""
    seeds = itertools.count(1)
    return lambda: way.rate(callers, count, min(callers, count), next(seeds))


def _row(label: str, pair: _Pair, rates: dict[str, list[float]], callers: int, target: str) -> Row:
    ours = rates[f"{_OURS} {callers}"]
    figure, compared = f"{median(ours):.1f} tokens/s", []
    for name, precision in ((_LLAMA_CPP, pair.kind), (_OPENVINO, pair.dtype)):
        of_peer = rates.get(f"{name} {callers}")
        if of_peer is not None:
            figure += f", {ratio(ours, of_peer):.2f} times {name}"
            compared.append(f"{name} {precision} {median(of_peer):.1f} tokens/s")
    return Row(label, figure, target, "; ".join(compared) or "no peer runs here")


def _on_core() -> str:
    return f", one core{' masked to AVX2' if is_masked() else ''}"


def _ours(stack: ExitStack, folder: Path, model: Path, dtype: str) -> Way:
    server = enter(stack, roundhouse(config=llama_config(folder, model, dtype), environment=mask()))
    return Way(server, {"model": "llama", "ignore_eos": True})


def _model(folder: Path, shape: LlamaShape) -> Path:
    model = folder / shape.name
    return model if model.exists() else save_llama(model, shape)


def _gguf(model: Path) -> Path:
    path = model.with_suffix(".gguf")
    if not path.exists():
        write_gguf(model, path, GGMLQuantizationType.F32)
    return path
