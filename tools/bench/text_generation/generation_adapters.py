"""Measure streams over several LoRA adapters beside streams of their base."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.models.lora_folders import Lora, save_lora
from tools.bench.shared.language_models import LARGE, mixed_prompts, save_llama
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer
from tools.bench.shared.streaming import completion, rate_while_all_ran, streams_together
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import serving

_ROUNDS = 5
_STREAMS = 16
_NEW_TOKENS = 128
_ADAPTERS = 4
_RANK = 16
_BASE, _ADAPTED = "base", "adapters"


def measure_generation_adapters(folder: Path) -> list[Row]:
    """Measure the decode rate of 16 streams in fp32 on all cores, shared with the load. One server has all models."""
    import torch
    import transformers

    model = save_llama(folder / LARGE.name, LARGE)
    with torch.device("meta"):
        sizes = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model))
    tables = [_table(folder, number, sizes) for number in range(1, _ADAPTERS + 1)]
    with serving(folder, model, after="\n".join(tables)) as server:
        models = {_BASE: ["llama"], _ADAPTED: [f"llama:{number}" for number in range(1, _ADAPTERS + 1)]}
        measures = {name: _each_round(server, of_streams) for name, of_streams in models.items()}
        in_turn(measures, 1)  # kernels are chosen
        rates = in_turn(measures, _ROUNDS)
    ours, of_base = rates[_ADAPTED], rates[_BASE]
    return [
        Row(
            f"{LARGE.label}, fp32, {_STREAMS} streams over {_ADAPTERS} adapters of rank {_RANK} in all linear layers, "
            "while all run",
            f"{median(ours):.0f} tokens/s, {ratio(ours, of_base):.2f} times",
            "≥ 0.8 times",
            f"{_STREAMS} streams of the base {median(of_base):.0f} tokens/s",
        )
    ]


def _table(folder: Path, number: int, base: Any) -> str:
    """Save an adapter, and return its table in the config file."""
    # The small scale keeps all numbers as large as the base's.
    path = save_lora(folder / f"adapter-{number}", Lora(number, rank=_RANK, alpha=0.1), base)
    return f'[[models.torch_models.adapters]]\nname = "{number}"\npath = "{path}"\n'


def _each_round(server: RunningServer, models: Sequence[str]) -> Callable[[], float]:
    """Measure rounds of streams, each with the next of the models. All models get the same prompts."""
    seeds = itertools.count(1)

    def rate() -> float:
        prompts = mixed_prompts(_STREAMS, next(seeds))
        requests = [
            completion(model, prompt, _NEW_TOKENS, stream=True)
            for model, prompt in zip(itertools.cycle(models), prompts, strict=False)
        ]
        return rate_while_all_ran(asyncio.run(streams_together(server.port, requests)))

    return rate
