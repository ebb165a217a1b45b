"""Measure a language model, an encoder and a small model on one core, in one server and in three."""

import asyncio
import gc
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from statistics import median

import orjson

from tools.bench.peers.start import enter
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.corpus import mixed_texts
from tools.bench.shared.language_models import LARGE, mixed_prompts, save_llama
from tools.bench.shared.load import Connection, open_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.streaming import Streamed, completion, stream
from tools.bench.shared.table import Row, percent

ROUNDS = 3
STREAMS = 4
_STREAM_TOKENS = 400
CALLERS = 16
PER_SECOND = 500
_BEFORE_S = 5.0
_SECONDS = 20.0
_LLAMA, _TEXTS, _SMALL = range(3)


@dataclass(frozen=True, slots=True)
class MixFigures:
    """One round in one or in three servers."""

    small_p50_ms: float
    small_p99_ms: float
    tokens_per_s: float
    texts_per_s: float


@dataclass(slots=True)
class Mix:
    """The servers of the three models, and their requests; no prompt occurs twice."""

    servers: list[RunningServer]
    vector: str
    minilm: str
    _seeds: "count[int]"

    def measured(self) -> MixFigures:
        """Return one round."""
        with ExitStack() as stack:
            for server in {server.port: server for server in self.servers}.values():
                stack.enter_context(server.awake())
            return asyncio.run(self._measured())

    async def _measured(self) -> MixFigures:
        ends_s = time.perf_counter() + _BEFORE_S + _SECONDS

        def goes_on(*_: int) -> bool:
            return time.perf_counter() < ends_s

        streamed: list[Streamed] = []
        answered_s: list[float] = []
        async with asyncio.TaskGroup() as group:
            for prompt in mixed_prompts(STREAMS, next(self._seeds)):
                group.create_task(self._keep_streaming(prompt, streamed, goes_on))
            for first in range(CALLERS):
                group.create_task(self._repeat_requests(first, answered_s, goes_on))
            await asyncio.sleep(_BEFORE_S)
            request = request_of(f"/models/{self.vector}/infer", orjson.dumps({"input_data": [0.5] * 16}))
            answers = await open_loop(self.servers[_SMALL].port, request, PER_SECOND, goes_on)
        if wrong := [answer.status for answer in answers if answer.status != 200]:
            raise RuntimeError(f"the small model answered {wrong[0]}")
        took_ms = sorted(answer.took_s * 1e3 for answer in answers)
        from_s = ends_s - _SECONDS
        return MixFigures(
            took_ms[len(took_ms) // 2],
            took_ms[math.ceil(len(took_ms) * 0.99) - 1],
            sum(from_s < at_s <= ends_s for each in streamed for at_s in each.pieces_s) / _SECONDS,
            sum(from_s < at_s <= ends_s for at_s in answered_s) / _SECONDS,
        )

    async def _keep_streaming(self, prompt: str, streamed: list[Streamed], goes_on: Callable[[], bool]) -> None:
        while goes_on():
            streamed.append(Streamed())
            request = completion("llama", prompt, _STREAM_TOKENS, stream=True)
            await stream(self.servers[_LLAMA].port, request, streamed[-1], goes_on)

    async def _repeat_requests(self, first: int, answered_s: list[float], goes_on: Callable[[], bool]) -> None:
        connection = await Connection.to(self.servers[_TEXTS].port)
        texts = mixed_texts()
        for text in cycle(texts[first:] + texts[:first]):
            if not goes_on():
                break
            request = request_of(f"/models/{self.minilm}/infer", orjson.dumps({"text": text}))
            if (status := await connection.ask(request)) != 200:
                raise RuntimeError(f"MiniLM answered {status}")
            answered_s.append(time.perf_counter())
        connection.close()


def measure_isolation_generation(folder: Path, vector: Path, minilm: Path) -> list[Row]:
    """Measure four streams of the large Llama, 16 callers with texts, and the small model at 500 requests a second."""
    llama = save_llama(folder / "isolation", LARGE)
    entry = f'[[models.torch_models]]\nname = "llama"\npath = "{llama}"\ndtype = "f32"\ndevice = "cpu"\n'
    others = "".join(f'[[models.onnx_models]]\nname = "{model.stem}"\npath = "{model}"\n' for model in (vector, minilm))
    (folder / "alone.toml").write_text(entry, encoding="utf-8")
    (folder / "together.toml").write_text(entry + others, encoding="utf-8")
    with ExitStack() as stack:
        together = enter(stack, roundhouse(config=folder / "together.toml"))
        apart = [
            enter(stack, server)
            for server in (
                roundhouse(config=folder / "alone.toml"),
                roundhouse([str(minilm)]),
                roundhouse([str(vector)]),
            )
        ]
        stack.enter_context(on_cores(LOAD_CORES))
        gc.disable()  # the load's own pauses are not the server's
        stack.callback(gc.enable)
        figures = in_turn(
            {
                "together": Mix([together] * 3, vector.stem, minilm.stem, count()).measured,
                "apart": Mix(apart, vector.stem, minilm.stem, count()).measured,
            },
            ROUNDS,
        )
    return _rows(figures["together"], figures["apart"])


def _rows(together: list[MixFigures], apart: list[MixFigures]) -> list[Row]:
    p99_ms, p50_ms = median(each.small_p99_ms for each in together), median(each.small_p50_ms for each in together)
    apart_p99_ms = [each.small_p99_ms for each in apart]
    tokens, apart_tokens = [each.tokens_per_s for each in together], [each.tokens_per_s for each in apart]
    texts, apart_texts = [each.texts_per_s for each in together], [each.texts_per_s for each in apart]
    return [
        Row(
            f"16 floats at a steady {PER_SECOND} req/s beside {STREAMS} streams of the {LARGE.label} and {CALLERS} "
            "callers with texts to MiniLM (ONNX), one server on one core: p99",
            f"{p99_ms:.1f} ms",
            "≤ 15 ms",
            f"its median {p50_ms:.1f} ms; each in a server of its own on that core: p99 {median(apart_p99_ms):.1f} ms",
        ),
        Row(
            "the streams' tokens/s in that mix",
            f"{percent(ratio(tokens, apart_tokens))} of those of separate servers",
            "≥ 80 %",
            f"{median(tokens):.1f} against {median(apart_tokens):.1f} tokens/s; "
            f"texts {median(texts):.1f} against {median(apart_texts):.1f} texts/s",
        ),
    ]
