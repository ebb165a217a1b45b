"""Load generating models as the manager does, on one CPU thread, and run sequences through them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.generation.sequences import GeneratedToken, SequenceRequest, StepResult
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.step.shape import read_shape
from frameworks.pytorch.registry import TorchRegistry
from frameworks.quantization.copies import QuantizedCopies
from tests.frameworks.models.loading import NO_COPIES
from tests.support.fake_probe import GIB, FakeProbe

GREEDY = Sampling(temperature=0)


def load_generating(
    folder: Path,
    *,
    blocks: int | None = None,
    enable_mapping: bool = True,
    cache_dir: Path | None = None,
    **entry: Any,
) -> Any:
    """A GeneratingModel, not warmed up. `blocks`: of the key/value memory. `entry`: the keys of a
    `[[models.torch_models]]` table; `dtype` is f32 unless it says otherwise, "default" leaves it out. `cache_dir`: for
    derived files; None: where none can be written.
    """
    dtype = entry.pop("dtype", "f32")
    if dtype != "default":
        entry["dtype"] = dtype
    if blocks is not None:
        cache = read_shape(folder, "f32" if dtype in ("default", "int8", "int4") else dtype).cache
        entry["kv_cache_bytes"] = blocks * BLOCK_TOKENS * cache.token_bytes
    copies = NO_COPIES if cache_dir is None else QuantizedCopies(cache_dir)
    registry = TorchRegistry(PerformanceSettings(intra_op_threads=1), GIB, copies, enable_mapping)
    settings = TorchModelEntry(name="m", path=folder, **entry)
    devices = DeviceManager(FakeProbe())
    needs = registry.needs(settings, folder)
    device = devices.candidates("m", replace(needs, wanted=devices.wanted(needs)[0]))[0]
    [model] = registry.load(settings, folder, device)
    assert isinstance(model, GeneratingModel)
    return model


def decoder_of(model: GeneratingModel) -> Any:
    """The decoder of a model that runs by paged attention."""
    assert model._parts is not None
    runner: Any = model._parts.runner
    return runner.decoder


def never_stop_proposing(model: GeneratingModel) -> None:
    """Let proposed tokens save time even if they are wrong, whatever steps take on this machine."""
    assert model._parts is not None
    assert model._parts.speculation is not None
    cost: Any = model._parts.speculation._speculator._cost
    cost.of_token = lambda texts, proposed: -0.1 / proposed


def request(
    sequence_id: int, prompt_ids: Iterable[int], max_tokens: int = 8, sampling: Sampling = GREEDY, **more: Any
) -> SequenceRequest:
    """Return a greedy SequenceRequest."""
    return SequenceRequest(sequence_id, tuple(prompt_ids), max_tokens, sampling, **{"priority": 5} | more)


def stepped(model: GeneratingModel) -> StepResult:
    """Run a step and check that no block is lost."""
    result = model.step()
    model.check_integrity()
    return result


def run_out(model: GeneratingModel) -> list[StepResult]:
    """Run steps until no sequence is left."""
    results = []
    while model.has_work:
        results.append(stepped(model))
    return results


def tokens_of(model: GeneratingModel, *requests: SequenceRequest) -> dict[int, list[GeneratedToken]]:
    """Return the tokens of these and of earlier sequences until all have ended. None may fail."""
    for one in requests:
        model.add(one)
    tokens: dict[int, list[GeneratedToken]] = {one.sequence_id: [] for one in requests}
    for result in run_out(model):
        assert result.failed == []
        for token in result.tokens:
            tokens.setdefault(token.sequence_id, []).append(token)
    return tokens


def ids_of(model: GeneratingModel, *requests: SequenceRequest) -> dict[int, list[int]]:
    """Return the token ids of `tokens_of`."""
    tokens = tokens_of(model, *requests)
    return {sequence_id: [token.token_id for token in given] for sequence_id, given in tokens.items()}


def alone(model: GeneratingModel, one: SequenceRequest) -> list[int]:
    """Return the tokens of a sequence that runs alone."""
    assert not model.has_work
    return ids_of(model, one)[one.sequence_id]


def greedy_texts(reference: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Return the tokens of transformers' `generate`; prompts of one length run together, without padding."""
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
