"""Measure a small model beside texts and generation on one core: these in processes, and all in the server."""

import gc
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median

from tools.bench.peers.start import enter
from tools.bench.processes.engine_configs import Entry, write_config
from tools.bench.processes.isolation_generation import CALLERS, PER_SECOND, ROUNDS, STREAMS, Mix, MixFigures
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.language_models import LARGE, save_llama
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row, percent


def measure_engine_latency(folder: Path, vector: Path, minilm: Path) -> list[Row]:
    """Measure the mix of the part isolation-generation, with texts and generation in processes and without."""
    llama = save_llama(folder / "latency", LARGE)
    with ExitStack() as stack:
        servers = {
            name: enter(stack, roundhouse(config=_config(folder / f"{name}.toml", vector, minilm, llama, isolated)))
            for name, isolated in (("apart", True), ("inside", False))
        }
        stack.enter_context(on_cores(LOAD_CORES))
        gc.disable()  # the load's own pauses are not the server's
        stack.callback(gc.enable)
        ways = {name: Mix([server] * 3, vector.stem, minilm.stem, count()).measured for name, server in servers.items()}
        figures = in_turn(ways, ROUNDS)
    return _rows(figures["apart"], figures["inside"])


def _config(file: Path, vector: Path, minilm: Path, llama: Path, isolated: bool) -> Path:
    entries = [
        Entry(vector.stem, vector),
        Entry(minilm.stem, minilm, isolated=isolated),
        Entry("llama", llama, "torch", isolated, ('dtype = "f32"', 'device = "cpu"')),
    ]
    return write_config(file, entries)


def _rows(apart: list[MixFigures], inside: list[MixFigures]) -> list[Row]:
    p99_ms, p50_ms = median(each.small_p99_ms for each in apart), median(each.small_p50_ms for each in apart)
    inside_p99_ms = median(each.small_p99_ms for each in inside)
    tokens = [[each.tokens_per_s for each in figures] for figures in (apart, inside)]
    texts = [[each.texts_per_s for each in figures] for figures in (apart, inside)]
    return [
        Row(
            f"16 floats at a steady {PER_SECOND} req/s beside {STREAMS} streams of the {LARGE.label} and {CALLERS} "
            "callers with texts to MiniLM (ONNX), these in processes, all on one core: p99",
            f"{p99_ms:.1f} ms",
            "≤ 5 ms",
            f"its median {p50_ms:.1f} ms; all in the server: p99 {inside_p99_ms:.1f} ms",
        ),
        Row(
            "the streams' tokens/s in that mix",
            f"{percent(ratio(*tokens))} of all in the server",
            compared=f"texts/s {percent(ratio(*texts))}; {median(tokens[0]):.1f} against {median(tokens[1]):.1f} "
            f"tokens/s, {median(texts[0]):.1f} against {median(texts[1]):.1f} texts/s",
        ),
    ]
