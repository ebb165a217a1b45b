"""Measure tokens per second beside both modes of `transformers serve` and the model's own steps in-process."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from tools.bench.peers.start import enter, enter_peer, transformers_serve
from tools.bench.shared.language_models import LARGE, SMALL, LlamaShape, mixed_prompts, save_llama
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.streaming import completion, rate_while_all_ran, streams_together
from tools.bench.shared.table import Row
from tools.bench.text_generation.decode_steps import DecodeSteps, decode_steps

_ROUNDS = 3
_CALLERS = 16
_NEW_TOKENS = 32
_DECODE_STEPS = 64
_MODEL = "llama"
_OURS, _BF16, _INT8 = "ours", "ours in bf16", "ours in int8"
_BATCHING, _PLAIN = "transformers serve --continuous-batching", "transformers serve"
_IN_PROCESS = "decode steps in-process"

Rates = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Load:
    """Number of timed requests in a round, at 16 callers and at one; fewer for a peer that answers them one by one."""

    at_16: int
    one_by_one: int
    alone: int


@dataclass(frozen=True, slots=True)
class Way:
    """A server with the model, paused unless it is measured. `fields`: members of its requests besides the prompt."""

    server: RunningServer
    fields: dict[str, Any]

    def rate(self, callers: int, count: int, warm: int, seed: int) -> float:
        """Return the tokens per second; no prompt occurs twice."""
        fields = self.fields | {"max_tokens": _NEW_TOKENS, "temperature": 0}
        prompts = mixed_prompts(count + warm + callers, seed)
        requests = [request_of("/v1/completions", orjson.dumps({"prompt": each} | fields)) for each in prompts]
        with self.server.awake():
            seconds = asyncio.run(closed_loop(self.server.port, requests, callers, count, warm))
        return count * _NEW_TOKENS / seconds

    def decode_rate(self, seed: int) -> float:
        """Return the tokens per second while 16 streams run, without their prefill."""
        prompts = mixed_prompts(_CALLERS, seed)
        # The first text already runs during the prefill of the last.
        requests = [completion(_MODEL, each, 2 * _DECODE_STEPS, stream=True) for each in prompts]
        with self.server.awake():
            return rate_while_all_ran(asyncio.run(streams_together(self.server.port, requests)))


def measure_generation(folder: Path) -> list[Row]:
    """Measure both Llamas in fp32, bf16 and int8, on all cores, shared with the load."""
    return [
        *_rows(folder, SMALL, _Load(192, 16, 24), "≥ 1.5 times"),
        *_rows(folder, LARGE, _Load(64, 16, 8), "≥ 2 times"),
    ]


@contextmanager
def serving(
    folder: Path, model: Path, dtype: str = "f32", more: str = "", device: str = "cpu", after: str = ""
) -> Iterator[RunningServer]:
    """Start Roundhouse with the Llama as `llama`. `more`, `after`: as of `llama_config`."""
    with roundhouse(config=llama_config(folder, model, dtype, more, device, after), cores=None) as server:
        yield server


def llama_config(
    folder: Path, model: Path, dtype: str = "f32", more: str = "", device: str = "cpu", after: str = ""
) -> Path:
    """Write the config file of a server with one Llama, named `llama`; return its path.

    `more`: further lines. `after`: lines behind the table of the model.
    """
    config = folder / f"{model.name}-{dtype}.toml"
    entry = f'[[models.torch_models]]\nname = "{_MODEL}"\npath = "{model}"\ndtype = "{dtype}"\ndevice = "{device}"\n'
    config.write_text(f"{more}\n{entry}{after}", encoding="utf-8")
    return config


def _rows(folder: Path, shape: LlamaShape, load: _Load, target: str) -> list[Row]:
    model = save_llama(folder / shape.name, shape)
    with ExitStack() as stack:
        ways = _started(stack, folder, model)
        steps = stack.enter_context(decode_steps(model))
        rates = in_turn(_measures(ways, steps, load), _ROUNDS)
    what = f"{shape.label}, fp32, prompts of 10 to 150 tokens, {_NEW_TOKENS} new ones"
    return [
        _beside_servers(f"{what}: {_CALLERS} callers", rates, "", target, _BATCHING),
        _beside_servers(f"{what}: 1 caller", rates, " alone", "≥ 1.3 times the better", None),
        _beside_steps(shape, rates),
        _narrow_row(shape, rates, "bf16", _BF16, "≥ 1.5 times"),
        _narrow_row(shape, rates, "int8", _INT8, "≥ 1 time"),
    ]


def _started(stack: ExitStack, folder: Path, model: Path) -> dict[str, Way]:
    """Start all servers that run here. Raises RuntimeError if their texts differ from those of the first."""
    asks = {"model": _MODEL, "ignore_eos": True}
    ways = {
        _OURS: Way(enter(stack, serving(folder, model)), asks),
        _BF16: Way(enter(stack, serving(folder, model, "bf16")), asks),
        _INT8: Way(enter(stack, serving(folder, model, "int8")), asks),
    }
    for name, batching in ((_BATCHING, True), (_PLAIN, False)):
        peer = enter_peer(stack, name, transformers_serve(model, continuous_batching=batching))
        if peer is not None:
            ways[name] = Way(peer, {})
    texts = {name: first_words(way) for name, way in ways.items()}
    for name, text in texts.items():
        if name not in (_BF16, _INT8) and text != texts[_OURS]:
            raise RuntimeError(f"{name} goes on with {text!r}, not with {texts[_OURS]!r}")
    return ways


def first_words(way: Way) -> list[str]:
    """Return the first words of a text; their probabilities are far apart. The first request also warms up a peer."""
    fields = way.fields | {"prompt": mixed_prompts(1, 0)[0], "max_tokens": _NEW_TOKENS, "temperature": 0}
    way.server.connection.close()  # the server may have closed it while it was paused; another is opened
    with way.server.awake():
        answer = way.server.post("/v1/completions", orjson.dumps(fields))
    if answer["usage"]["completion_tokens"] != _NEW_TOKENS:
        raise RuntimeError(f"{answer['usage']} instead of {_NEW_TOKENS} tokens")
    words: list[str] = answer["choices"][0]["text"].split()
    return words[:4]


def _measures(ways: dict[str, Way], steps: DecodeSteps, load: _Load) -> dict[str, Callable[[], float]]:
    """Measure rounds with the same prompts for all servers."""
    measures: dict[str, Callable[[], float]] = {}

    def add(name: str, rate: Callable[[int], float]) -> None:
        seeds = itertools.count(1)
        measures[name] = lambda: rate(next(seeds))

    for name, way in ways.items():
        count, warm = (load.one_by_one, 0) if name == _PLAIN else (load.at_16, _CALLERS)
        add(name, lambda seed, way=way, count=count, warm=warm: way.rate(_CALLERS, count, warm, seed))  # type: ignore[misc]
        add(f"{name} alone", lambda seed, way=way: way.rate(1, load.alone, 1, seed + 1000))  # type: ignore[misc]
    add(f"{_OURS} steps", lambda seed: ways[_OURS].decode_rate(seed + 2000))
    add(_IN_PROCESS, lambda seed: steps.tokens_per_s(mixed_prompts(_CALLERS, seed), _DECODE_STEPS))
    add(f"{_IN_PROCESS} alone", lambda seed: steps.tokens_per_s(mixed_prompts(1, seed), _DECODE_STEPS))
    return measures


def _beside_servers(what: str, rates: Rates, mode: str, target: str, peer: str | None) -> Row:
    """`peer` None: the faster one."""
    ours = rates[_OURS + mode]
    peers = {name: rates[name + mode] for name in (_BATCHING, _PLAIN) if name + mode in rates}
    compared = "; ".join(f"{name} {median(of_peer):.0f} tokens/s" for name, of_peer in peers.items())
    if not peers:
        return Row(what, f"{median(ours):.0f} tokens/s", target, "no peer runs here")
    if peer is None or peer not in peers:
        peer = max(peers, key=lambda name: median(peers[name]))
    return Row(what, f"{median(ours):.0f} tokens/s, {ratio(ours, peers[peer]):.2f} times {peer}", target, compared)


def _beside_steps(shape: LlamaShape, rates: Rates) -> Row:
    served, steps, in_process = rates[_OURS], rates[f"{_OURS} steps"], rates[_IN_PROCESS]
    return Row(
        f"{shape.label}, fp32, against the transformers model's own decode steps in-process, batch {_CALLERS}",
        f"{ratio(served, in_process):.2f} times, prompts and HTTP included; "
        f"{ratio(steps, in_process):.2f} times while {_CALLERS} streams run",
        "≥ 1.3 times" if shape is LARGE else "-",
        f"{median(steps):.0f} tokens/s of streams; in-process {median(in_process):.0f} tokens/s, "
        f"batch 1 {median(rates[f'{_IN_PROCESS} alone']):.0f}",
    )


def _narrow_row(shape: LlamaShape, rates: Rates, dtype: str, narrow: str, target: str) -> Row:
    return Row(
        f"{shape.label}, {dtype} against our own fp32, {_CALLERS} callers",
        f"{median(rates[narrow]):.0f} tokens/s, {ratio(rates[narrow], rates[_OURS]):.2f} times",
        target if shape is LARGE else "-",
        f"1 caller {median(rates[f'{narrow} alone']):.0f} tokens/s, "
        f"{ratio(rates[f'{narrow} alone'], rates[f'{_OURS} alone']):.2f} times",
    )
