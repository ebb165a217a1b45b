"""Measure the steps of Llamas with random weights beside the limits of the device, in this process.

A decode step reads all weights once, so the bandwidth of the memory limits it. A prompt multiplies by all weights once
for each token, so the matrix rate limits it. Both limits are measured.
"""

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.registry import TorchRegistry
from frameworks.quantization.copies import QuantizedCopies
from tools.bench.shared.language_models import BILLION, EIGHT_HEADS, SMALL, VOCABULARY_SIZE, LlamaShape, save_llama
from tools.bench.shared.table import Row
from tools.gpu_kit.static_cache import static_cache_rows

_LIMIT_S = 420.0
_CONTEXT_TOKENS = 8192
_PROMPT_TOKENS = 64
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work on a kind of device. `dtypes`: of entries. `callers`: texts of a decode step. `targets`: the
    part of the bandwidth's limit that a step of one text is to reach, for each shape. `steps`: of a round.
    """

    shapes: tuple[LlamaShape, ...]
    dtypes: tuple[str, ...]
    targets: tuple[float, ...]
    callers: tuple[int, ...]
    steps: int
    prompt_tokens: int
    matrix_size: int
    copied_bytes: int


SCALES = {
    "cuda": Scale((BILLION, EIGHT_HEADS), ("bf16", "int8", "int4"), (0.55, 0.7), (1, 8, 32), 64, 8000, 8192, 1 << 30),
    "cpu": Scale((SMALL,), ("f32",), (0.0,), (1, 4), 8, 200, 512, 1 << 26),
}
_BYTES_OF_WEIGHT = {"int4": 0.5 + 1 / 16, "int8": 1 + 1 / 16, "bf16": 2.0, "f32": 4.0}
"""Integers have a scale of 2 bytes for each group of 32."""
PREFILL_TARGET = 0.6
"""The part of the matrix rate that a long prompt is to reach."""


def measure_steps(work: Path, device: str) -> Iterator[Row]:
    """Yield the limits, then rows for each shape and dtype. A shape for which there is no time left is said so."""
    scale, began_s = SCALES[device], time.perf_counter()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    bandwidth, rate = bytes_per_s(device, scale.copied_bytes), flops_per_s(device, scale.matrix_size, dtype)
    yield Row("bandwidth of the memory, by a copy", f"{bandwidth / 1e9:.0f} GB/s")
    yield Row(f"matrix rate, {dtype}, size {scale.matrix_size}", f"{rate / 1e12:.1f} TFLOP/s")
    longest_s = 0.0
    for shape, target in zip(scale.shapes, scale.targets, strict=True):
        shape_began_s = time.perf_counter()
        if shape_began_s - began_s + longest_s > _LIMIT_S:
            yield Row(f"steps of a {shape.label}", "-", compared="no time was left for it")
            continue
        folder = work / f"{shape.name}-steps"
        save_llama(folder, shape, str(dtype).removeprefix("torch."), device, context_tokens=_CONTEXT_TOKENS)
        try:
            for entry_dtype in scale.dtypes:
                steps = _Steps(folder, work, device, entry_dtype, max(scale.callers))
                try:
                    yield from steps.rows(shape, scale, bandwidth, rate, target)
                finally:
                    steps.close()
            yield from static_cache_rows(folder, shape.label, device, dtype, scale.steps)
        finally:
            shutil.rmtree(folder)
        longest_s = max(longest_s, time.perf_counter() - shape_began_s)


class _Steps:
    """The steps of one loaded model."""

    def __init__(self, folder: Path, work: Path, device: str, dtype: str, max_texts: int) -> None:
        self._device, self._dtype = device, dtype
        performance = PerformanceSettings(max_batch_size=max_texts)
        registry = TorchRegistry(performance, None, QuantizedCopies(work / "copies"))
        entry = TorchModelEntry(name="llama", path=folder, device=device, dtype=dtype, min_cosine=0.0)  # type: ignore[arg-type]
        [found, *_] = DeviceManager(SystemProbe()).candidates("llama", registry.needs(entry, folder))
        models: list[Any] = list(registry.load(entry, folder, found))
        [self._model] = models
        self._model.warm_up()
        self._runner: Any = self._model._parts.runner
        self._graphs = self._runner.step
        self._numbers, self._prompts = itertools.count(), random.Random(0)

    def rows(self, shape: LlamaShape, scale: Scale, bandwidth: float, rate: float, target: float) -> Iterator[Row]:
        """Yield rows of decodes, and of a prompt. `bandwidth`: bytes/s. `rate`: FLOP/s. `target`: for one text."""
        multiplied = shape.num_multiplied
        weight_bytes = multiplied * _BYTES_OF_WEIGHT[self._dtype]
        for callers in scale.callers:
            limit_s = weight_bytes / bandwidth
            with_graphs_s = self._decode_s(callers, scale.steps)
            compared = f"limit of the bandwidth {limit_s * 1e3:.2f} ms: {limit_s / with_graphs_s:.2f} of it"
            compared += "".join(f"; {way} {seconds * 1e3:.2f} ms" for way, seconds in self._others_s(callers, scale))
            yield Row(
                f"{shape.label}, {self._dtype}: decode step of {callers} texts",
                f"{with_graphs_s * 1e3:.2f} ms, {callers / with_graphs_s:.0f} tokens/s",
                f"≥ {target} of the limit" if callers == 1 and target else "-",
                compared,
            )
        prompt_s = self._prefill_s(scale.prompt_tokens)
        limit_s = 2 * multiplied * scale.prompt_tokens / rate
        yield Row(
            f"{shape.label}, {self._dtype}: prompt of {scale.prompt_tokens} tokens",
            f"{prompt_s * 1e3:.0f} ms, {scale.prompt_tokens / prompt_s:.0f} tokens/s",
            f"≥ {PREFILL_TARGET} of the limit" if target else "-",
            f"limit of the matrix rate {limit_s * 1e3:.0f} ms: {limit_s / prompt_s:.2f} of it",
        )

    def _others_s(self, callers: int, scale: Scale) -> Iterator[tuple[str, float]]:
        """Yield the seconds of a step where the host does more: it reads each step before the next, or launches all."""
        if self._device != "cuda":
            return
        whole = self._model._parts
        self._model._parts = replace(whole, device_sampler=None)
        yield "sampled by the host", self._decode_s(callers, scale.steps)
        self._model._parts = whole
        if self._graphs is not None:
            self._runner.step = None
            yield "without graphs", self._decode_s(callers, scale.steps)
            self._runner.step = self._graphs

    def close(self) -> None:
        """Free the memory of the device."""
        self._model.close()
        self._runner = self._graphs = None

    def _decode_s(self, callers: int, steps: int) -> float:
        """Return the median of the seconds of a step with so many texts, over all rounds."""
        seconds: list[float] = []
        for _ in range(_ROUNDS):
            added = [self._add(_PROMPT_TOKENS, 2 * steps) for _ in range(callers)]
            generated = dict.fromkeys(added, 0)
            while min(generated.values()) == 0:
                for token in self._model.step().tokens:
                    generated[token.sequence_id] += 1
            began_s = time.perf_counter()
            for _ in range(steps):
                self._model.step()
            seconds.append((time.perf_counter() - began_s) / steps)
            self._abort(added)
        return median(seconds)

    def _prefill_s(self, num_tokens: int) -> float:
        """Return the median of the seconds until the first token of a prompt."""
        seconds: list[float] = []
        for _ in range(_ROUNDS):
            added = self._add(num_tokens, 2)
            began_s = time.perf_counter()
            while not self._model.step().tokens:
                pass
            seconds.append(time.perf_counter() - began_s)
            self._abort([added])
        return median(seconds)

    def _add(self, num_tokens: int, max_tokens: int) -> int:
        """Add a text whose prompt no other has; return its id."""
        number = next(self._numbers)
        prompt = tuple(self._prompts.choices(range(300, VOCABULARY_SIZE - 1), k=num_tokens))
        self._model.add(SequenceRequest(number, prompt, max_tokens, Sampling(temperature=0), priority=5))
        return number

    def _abort(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            self._model.abort(sequence_id)


def bytes_per_s(device: str, size: int) -> float:
    """Return the bytes that a copy of `size` bytes reads and writes in a second."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _shortest_s(lambda: target.copy_(source), device)


def flops_per_s(device: str, size: int, dtype: torch.dtype) -> float:
    """Return the rate of a product of two square matrices."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _shortest_s(lambda: left @ right, device)


def _shortest_s(compute: Callable[[], object], device: str, rounds: int = 10) -> float:
    """Return the seconds of the fastest of some rounds, after one to warm up."""
    shortest = float("inf")
    for number in range(rounds + 1):
        began_s = time.perf_counter()
        compute()
        if device == "cuda":
            torch.cuda.synchronize()
        if number:
            shortest = min(shortest, time.perf_counter() - began_s)
    return shortest
