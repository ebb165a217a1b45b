"""Estimate the memory that a model of a task takes, from the files of its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworks.core.files import read_json
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.pytorch.weights import WeightFiles
from frameworks.tasks.speaking import MAX_SECONDS, TASK_NAME

_USUAL_SIDE = 512
_USUAL_TOKENS = 512
# The largest states of a run, in multiples of its input.
_STATES_PER_PIXEL = 12
_STATES_PER_TOKEN = 8
# Of a vocoder, whose channels halve while its samples double.
_STATES_PER_SAMPLE = 4
_USUAL_RATE_HZ = 16_000
_USUAL_CHANNELS = 512


def task_bytes(folder: Path, task: str, weights: WeightFiles, rows: int, item_bytes: int) -> int:
    """Estimate what a model takes with a run of `rows`. `item_bytes`: of a number of its dtype."""
    if task == TASK_NAME:
        # One text at a time.
        return weights.elements * 4 + _sound_bytes(read_json(folder / "config.json"))
    config, processor = read_json(folder / "config.json"), read_json(folder / PREPROCESSOR_FILE)
    state_bytes = 0
    if processor:
        size = processor.get("size")
        sides = [side for side in size.values() if isinstance(side, int)] if isinstance(size, dict) else []
        side = max(sides, default=_USUAL_SIDE)
        # Pictures are seldom square, and their pixels wait on the host in float32.
        state_bytes = rows * 3 * side * side * 4 * _STATES_PER_PIXEL // 4
    hidden = config.get("hidden_size") or config.get("d_model") or 0
    if isinstance(hidden, int):
        state_bytes += rows * _USUAL_TOKENS * hidden * item_bytes * _STATES_PER_TOKEN
    return weights.elements * item_bytes + state_bytes


def _sound_bytes(config: Mapping[str, Any]) -> int:
    """Estimate the states of a run that speaks the longest sound, float32."""
    rates = config.get("upsample_rates")
    channels = _positive(config.get("upsample_initial_channel"), _USUAL_CHANNELS)
    last = channels >> len(rates) if isinstance(rates, list) else 0
    num_samples = int(MAX_SECONDS * _positive(config.get("sampling_rate"), _USUAL_RATE_HZ))
    return num_samples * max(1, last) * 4 * _STATES_PER_SAMPLE


def _positive(value: Any, usual: int) -> int:
    return value if isinstance(value, int) and value > 0 else usual
