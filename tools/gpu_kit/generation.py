"""Measure tokens per second of Llamas with random weights beside transformers' own continuous batching."""

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tools.bench.shared.language_models import (
    BILLION,
    LARGE,
    SEVEN_BILLION,
    SMALL,
    LlamaShape,
    mixed_prompts,
    save_llama,
)
from tools.bench.shared.load import closed_loop
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.streaming import completion
from tools.bench.shared.table import Row
from tools.bench.text_generation.batching_in_process import batching_in_process
from tools.bench.text_generation.generation import serving

_LIMIT_S = 440.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work on a kind of device. `streams`: texts that are generated at once."""

    shapes: tuple[LlamaShape, ...]
    streams: tuple[int, ...]
    new_tokens: int
    rounds: int
    dtype: str
    entry_dtype: str


SCALES = {
    "cuda": Scale((LARGE, BILLION, SEVEN_BILLION), (1, 16, 64), 128, 3, "bfloat16", "bf16"),
    "cpu": Scale((SMALL,), (1, 4), 16, 1, "float32", "f32"),
}


def measure_generation(work: Path, device: str) -> Iterator[Row]:
    """Yield a row for each shape and number of streams. A shape for which there is no time left is said so."""
    scale = SCALES[device]
    began_s = time.perf_counter()
    longest_s = 0.0
    for shape in scale.shapes:
        shape_began_s = time.perf_counter()
        if shape_began_s - began_s + longest_s > _LIMIT_S:
            yield Row(f"{shape.label}, {scale.entry_dtype}", "-", compared="no time was left for it")
            continue
        yield from _shape_rows(work, shape, scale, device)
        longest_s = max(longest_s, time.perf_counter() - shape_began_s)


def _shape_rows(work: Path, shape: LlamaShape, scale: Scale, device: str) -> Iterator[Row]:
    model = save_llama(work / f"{shape.name}-{scale.dtype}", shape, scale.dtype, device)
    more = f"[performance]\nmax_batch_size = {max(scale.streams)}"
    try:
        with (
            serving(work, model, scale.entry_dtype, more, device) as server,
            batching_in_process(model, device, scale.dtype) as batching,
        ):
            # Its manager is made for the number of its first prompts.
            batching.tokens_per_s(mixed_prompts(max(scale.streams), 0), scale.new_tokens)
            for streams in scale.streams:
                ours = _round(lambda prompts: _served_s(server.port, prompts, scale.new_tokens), streams, scale)
                theirs = _round(
                    lambda prompts: len(prompts) * scale.new_tokens / batching.tokens_per_s(prompts, scale.new_tokens),
                    streams,
                    scale,
                )
                for warm_up in (ours, theirs):
                    warm_up()
                rates = in_turn({"ours": ours, "theirs": theirs}, scale.rounds)
                yield Row(
                    f"{shape.label}, {scale.entry_dtype}, {streams} streams, {scale.new_tokens} new tokens each",
                    f"{median(rates['ours']):.0f} tokens/s, {ratio(rates['ours'], rates['theirs']):.2f} times",
                    "≥ 1.0 times",
                    f"transformers' continuous batching in-process: {median(rates['theirs']):.0f} tokens/s",
                )
    finally:
        shutil.rmtree(model)  # 13 GB of the largest


def _round(seconds: Callable[[list[str]], float], streams: int, scale: Scale) -> Callable[[], float]:
    """Return a function that measures tokens per second of new prompts; both ways get the same ones."""
    seeds = itertools.count(streams * 1000)
    return lambda: streams * scale.new_tokens / seconds(mixed_prompts(streams, next(seeds)))


def _served_s(port: int, prompts: list[str], new_tokens: int) -> float:
    requests = [completion("llama", prompt, new_tokens) for prompt in prompts]
    return asyncio.run(closed_loop(port, requests, len(prompts), len(prompts)))
