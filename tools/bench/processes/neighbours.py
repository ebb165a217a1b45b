"""Measure a language model beside an idle encoder: the threads of both share the CPUs."""

import itertools
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import orjson

from tools.bench.peers.start import enter
from tools.bench.shared.language_models import SMALL, save_llama
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import Way, serving

_ROUNDS = 5
_REQUESTS = 24
_ENCODER = "encoder"
_ALONE, _BESIDE = "alone", "beside"


def measure_neighbours(folder: Path, minilm: Path) -> list[Row]:
    """Measure one caller of the small Llama in two servers. One also has the encoder, which runs before each round."""
    model = save_llama(folder / SMALL.name, SMALL)
    encoder = f'[[models.torch_models]]\nname = "{_ENCODER}"\npath = "{minilm}"\ndevice = "cpu"\n'
    with ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name, more in ((_ALONE, ""), (_BESIDE, encoder)):
            own = folder / name
            own.mkdir()
            ways[name] = Way(enter(stack, serving(own, model, more=more)), {"model": "llama", "ignore_eos": True})
        for way in ways.values():
            way.server.pause()
        seeds = {name: itertools.count(1) for name in ways}

        def alone() -> float:
            return ways[_ALONE].rate(1, _REQUESTS, 1, next(seeds[_ALONE]))

        def beside() -> float:
            server = ways[_BESIDE].server
            server.connection.close()  # the server may have closed it while it was paused; another is opened
            with server.awake():
                server.post(
                    "/v1/embeddings", orjson.dumps({"model": _ENCODER, "input": "the engine shed of a roundhouse"})
                )
            return ways[_BESIDE].rate(1, _REQUESTS, 1, next(seeds[_BESIDE]))

        rates = in_turn({_ALONE: alone, _BESIDE: beside}, _ROUNDS)
    return [
        Row(
            f"{SMALL.label}, fp32, 1 caller, in one server with MiniLM in PyTorch, asked a moment before",
            f"{median(rates[_BESIDE]):.0f} tokens/s, {ratio(rates[_BESIDE], rates[_ALONE]):.2f} times",
            "≥ 0.9 times",
            f"alone {median(rates[_ALONE]):.0f} tokens/s",
        )
    ]
