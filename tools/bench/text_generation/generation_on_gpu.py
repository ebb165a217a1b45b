"""Measure tokens per second on a GPU beside transformers' own continuous batching."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tools.bench.shared.language_models import BILLION, LlamaShape, mixed_prompts, save_llama
from tools.bench.shared.load import closed_loop
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.streaming import completion
from tools.bench.shared.table import Row
from tools.bench.text_generation.batching_in_process import batching_in_process
from tools.bench.text_generation.generation import serving

_ROUNDS = 3
_CALLERS = 64
_NEW_TOKENS = 128


def measure_generation_on_gpu(folder: Path) -> list[Row]:
    """Measure the Llama of a billion parameters in bf16. Without a GPU the row says so."""
    import torch

    if not torch.cuda.is_available():
        return [Row(_what(BILLION), "-", "≥ 1.0 times", "this machine has no GPU")]
    return measure_against_batching(folder, BILLION, "cuda", torch.cuda.get_device_name())


def measure_against_batching(folder: Path, shape: LlamaShape, device: str, device_label: str) -> list[Row]:
    """Generate texts for 64 new prompts at once, with a server and without."""
    model = save_llama(folder / f"{shape.name}-bf16", shape, "bfloat16")
    more = f"[performance]\nmax_batch_size = {_CALLERS}"
    with (
        serving(folder, model, "bf16", more, device) as server,
        batching_in_process(model, device, "bfloat16") as batching,
    ):

        def served(seed: int) -> float:
            requests = [completion("llama", prompt, _NEW_TOKENS) for prompt in mixed_prompts(_CALLERS, seed)]
            return _CALLERS * _NEW_TOKENS / asyncio.run(closed_loop(server.port, requests, _CALLERS, _CALLERS))

        def in_process(seed: int) -> float:
            return batching.tokens_per_s(mixed_prompts(_CALLERS, seed), _NEW_TOKENS)

        for way in (served, in_process):
            way(0)  # kernels are chosen and graphs are captured
        rates = in_turn({"ours": _each_round(served), "theirs": _each_round(in_process)}, _ROUNDS)
    ours, theirs = rates["ours"], rates["theirs"]
    return [
        Row(
            _what(shape),
            f"{median(ours):.0f} tokens/s, {ratio(ours, theirs):.2f} times",
            "≥ 1.0 times",
            f"transformers' continuous batching in-process {median(theirs):.0f} tokens/s; {device_label}",
        )
    ]


def _each_round(way: Callable[[int], float]) -> Callable[[], float]:
    """Measure rounds with the same prompts for both."""
    seeds = itertools.count(1)
    return lambda: way(next(seeds))


def _what(shape: LlamaShape) -> str:
    return f"{shape.label}, bf16, {_CALLERS} callers, {_NEW_TOKENS} new tokens each, on a GPU"
