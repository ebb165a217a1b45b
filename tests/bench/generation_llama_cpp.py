"""Measure tokens per second beside llama.cpp's server, on one core, with the same weights, prompts and precision."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gguf import GGMLQuantizationType

from tests.bench.generation import Way, llama_config
from tests.bench.language_models import LARGE, SMALL, LlamaShape, save_llama
from tests.bench.peers.llama_cpp import llama_server, quantized
from tests.bench.peers.start import enter, enter_peer
from tests.bench.rounds import in_turn, ratio
from tests.bench.servers import roundhouse
from tests.bench.table import Row
from tests.support.gguf_files import write_gguf

_ROUNDS = 3
_CALLERS = 16
_OURS, _PEER = "ours", "llama.cpp"


@dataclass(frozen=True, slots=True)
class _Precision:
    """`dtype`: ours. `kind`: of the blocks of the GGUF file. `targets`: with 16 callers, and with one."""

    dtype: str
    kind: str
    targets: tuple[str, str]


_OF_LARGE = (
    _Precision("f32", "F32", ("≥ 1.0 times", "≥ 0.95 times")),
    _Precision("int8", "Q8_0", ("≥ 0.9 times", "≥ 0.9 times")),
    _Precision("int4", "Q4_0", ("≥ 0.9 times", "≥ 0.9 times")),
)
_OF_SMALL = (_Precision("f32", "F32", ("≥ 0.9 times", "≥ 0.6 times")),)


def measure_generation_llama_cpp(folder: Path) -> list[Row]:
    """Return two rows for each model and precision: 16 callers, and one."""
    rows = [_rows(folder, SMALL, precision, counts=(96, 12)) for precision in _OF_SMALL]
    rows += [_rows(folder, LARGE, precision, counts=(48, 4)) for precision in _OF_LARGE]
    return [row for pair in rows for row in pair]


def _rows(folder: Path, shape: LlamaShape, precision: _Precision, counts: tuple[int, int]) -> list[Row]:
    model = save_llama(folder / shape.name, shape)
    with ExitStack() as stack:
        ours = enter(stack, roundhouse(config=llama_config(folder, model, precision.dtype)))
        ways = {_OURS: Way(ours, {"model": "llama", "ignore_eos": True})}
        peer = enter_peer(stack, _PEER, llama_server(_gguf(model, precision.kind)))
        if peer is not None:
            ways[_PEER] = Way(peer, {"ignore_eos": True, "cache_prompt": False})
        measures = {
            f"{name} {callers}": _rounds(way, callers, count)
            for name, way in ways.items()
            for callers, count in zip((_CALLERS, 1), counts, strict=True)
        }
        in_turn(measures, 1)  # caches and kernels
        rates = in_turn(measures, _ROUNDS)
    what = f"{shape.label}, {precision.dtype}, one core"
    rows = []
    for callers, target in zip((_CALLERS, 1), precision.targets, strict=True):
        label = f"{what}: {callers} callers" if callers > 1 else f"{what}: 1 caller"
        of_ours, of_peer = rates[f"{_OURS} {callers}"], rates.get(f"{_PEER} {callers}")
        if of_peer is None:
            rows.append(Row(label, f"{median(of_ours):.1f} tokens/s", target, "llama.cpp does not run here"))
            continue
        compared = f"llama.cpp {precision.kind} {median(of_peer):.1f} tokens/s"
        rows.append(
            Row(label, f"{median(of_ours):.1f} tokens/s, {ratio(of_ours, of_peer):.2f} times", target, compared)
        )
    return rows


def _gguf(model: Path, kind: str) -> Path:
    path = model.with_suffix(".gguf")
    if not path.exists():
        write_gguf(model, path, GGMLQuantizationType.F32)
    return path if kind == "F32" else quantized(path, kind)


def _rounds(way: Way, callers: int, count: int) -> Callable[[], float]:
    """Measure rounds; the servers get the same prompts, and no server gets a prompt twice."""
    seeds = itertools.count(1)
    return lambda: way.rate(callers, count, min(callers, count), next(seeds))
