"""Loads generating models as the manager would, on one CPU thread, and runs sequences through them."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from frameworks.devices import DeviceManager
from frameworks.generation.types import GeneratedToken, Sampling, SequenceRequest, StepResult
from frameworks.pytorch.generation.engine import GeneratingModel
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.loading import read_shape
from frameworks.pytorch.registry import TorchRegistry
from frameworks.settings import PerformanceSettings, TorchModelEntry
from tests.frameworks.models.loading import NO_COPIES
from tests.support.fake_probe import GIB, FakeProbe

GREEDY = Sampling(temperature=0)


def load_generating(folder: Path, *, blocks: int | None = None, enable_mapping: bool = True, **entry: Any) -> Any:
    """A GeneratingModel, not warmed up. `blocks`: of the key/value memory. `entry`: the keys of a
    `[[models.torch_models]]` table; `dtype` is f32 unless it says otherwise, "default" leaves it out.
    """
    dtype = entry.pop("dtype", "f32")
    if dtype != "default":
        entry["dtype"] = dtype
    if blocks is not None:
        cache = read_shape(folder, "f32" if dtype in ("default", "int8") else dtype).cache
        entry["kv_cache_bytes"] = blocks * BLOCK_TOKENS * cache.token_bytes
    registry = TorchRegistry(PerformanceSettings(intra_op_threads=1), GIB, NO_COPIES, enable_mapping)
    settings = TorchModelEntry(name="m", path=folder, **entry)
    devices = DeviceManager(FakeProbe())
    device = devices.candidates("m", registry.needs(settings, folder))[0]
    [model] = registry.load(settings, folder, device)
    assert isinstance(model, GeneratingModel)
    return model


def request(
    sequence_id: int, prompt_ids: Iterable[int], max_tokens: int = 8, sampling: Sampling = GREEDY, **more: Any
) -> SequenceRequest:
    """As SequenceRequest; greedy."""
    return SequenceRequest(sequence_id, tuple(prompt_ids), max_tokens, sampling, **{"priority": 5} | more)


def stepped(model: GeneratingModel) -> StepResult:
    """A step, after which no block is lost."""
    result = model.step()
    model.check_integrity()
    return result


def run_out(model: GeneratingModel) -> list[StepResult]:
    """Steps until nobody is left."""
    results = []
    while model.has_work:
        results.append(stepped(model))
    return results


def tokens_of(model: GeneratingModel, *requests: SequenceRequest) -> dict[int, list[GeneratedToken]]:
    """What the model gives to these and to those that it has already, until all have ended. None may fail."""
    for one in requests:
        model.add(one)
    tokens: dict[int, list[GeneratedToken]] = {one.sequence_id: [] for one in requests}
    for result in run_out(model):
        assert result.failed == []
        for token in result.tokens:
            tokens.setdefault(token.sequence_id, []).append(token)
    return tokens


def ids_of(model: GeneratingModel, *requests: SequenceRequest) -> dict[int, list[int]]:
    """As `tokens_of`, the ids alone."""
    tokens = tokens_of(model, *requests)
    return {sequence_id: [token.token_id for token in given] for sequence_id, given in tokens.items()}


def alone(model: GeneratingModel, one: SequenceRequest) -> list[int]:
    """What it gives to a sequence with nobody beside it."""
    assert not model.has_work
    return ids_of(model, one)[one.sequence_id]


def greedy_texts(reference: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """By transformers' own `generate`; prompts of the same length together, so that none is padded."""
    texts: list[list[int]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for length, group in groupby(by_length, key=lambda i: len(prompts[i])):
        members = list(group)
        with torch.inference_mode():
            output = reference.generate(
                torch.tensor([list(prompts[i]) for i in members]),
                attention_mask=torch.ones(len(members), length, dtype=torch.long),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        for i, text in zip(members, output[:, length:].tolist(), strict=True):
            texts[i] = text
    return texts
