"""Measure texts and generated tokens per second through the process of a model, beside the same in the server."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import orjson

from tools.bench.processes.engine_configs import Entry, write_config
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import DECK, mixed_texts
from tools.bench.shared.language_models import LARGE, mixed_prompts, save_llama
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.streaming import completion, rate_while_all_ran, streams_together
from tools.bench.shared.table import Row, percent

_ROUNDS = 7
_CALLERS = 32
_DECKS = 2
_STREAMS = 16
_STREAM_TOKENS = 160
_INSIDE, _APART = "inside", "apart"


def measure_engine_rates(folder: Path, minilm: Path) -> list[Row]:
    """Measure MiniLM with 32 callers and the large Llama with 16 streams; server and load have a core each."""
    with on_cores(LOAD_CORES):
        return [_texts_row(folder, minilm), _generation_row(folder)]


def _texts_row(folder: Path, minilm: Path) -> Row:
    with roundhouse(config=_config(folder, minilm, "onnx")) as server:
        rates = _rates(partial(_texts_per_s, server))
    return _row(f"MiniLM (ONNX), texts of 4 to 130 words, {_CALLERS} connections: tokens/s", rates, "texts/s")


def _generation_row(folder: Path) -> Row:
    llama = save_llama(folder / LARGE.name, LARGE)
    seeds = itertools.count()
    with roundhouse(config=_config(folder, llama, "torch", 'dtype = "f32"', 'device = "cpu"')) as server:
        rates = _rates(lambda name: _tokens_per_s(server, name, next(seeds)))
    return _row(f"{LARGE.label}, fp32, {_STREAMS} streams: tokens/s while all run", rates, "tokens/s")


def _config(folder: Path, model: Path, framework: str, *lines: str) -> Path:
    entries = [Entry(name, model, framework, name == _APART, lines) for name in (_INSIDE, _APART)]
    return write_config(folder / f"rates-{framework}.toml", entries)


def _rates(rate: Callable[[str], float]) -> dict[str, list[float]]:
    """Return the rates by the name of the model, after a round of warm-up."""
    ways = {name: partial(rate, name) for name in (_INSIDE, _APART)}
    in_turn(ways, 1)
    return in_turn(ways, _ROUNDS)


def _texts_per_s(server: RunningServer, name: str) -> float:
    texts = mixed_texts()[: _DECKS * DECK]
    requests = [request_of(f"/models/{name}/infer", orjson.dumps({"text": text})) for text in texts]
    return len(requests) / asyncio.run(closed_loop(server.port, requests, _CALLERS, len(requests), warm=_CALLERS))


def _tokens_per_s(server: RunningServer, name: str, seed: int) -> float:
    requests = [completion(name, each, _STREAM_TOKENS, stream=True) for each in mixed_prompts(_STREAMS, seed)]
    return rate_while_all_ran(asyncio.run(streams_together(server.port, requests)))


def _row(what: str, rates: dict[str, list[float]], unit: str) -> Row:
    return Row(
        f"{what} through the process of a model",
        f"{percent(ratio(rates[_APART], rates[_INSIDE]))} of in the server",
        "≥ 98 %",
        f"{median(rates[_APART]):.1f} against {median(rates[_INSIDE]):.1f} {unit}",
    )
