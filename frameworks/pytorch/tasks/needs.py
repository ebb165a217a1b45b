"""Estimate the memory that a model of a task takes, from the files of its folder."""

from pathlib import Path

from frameworks.core.files import read_json
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.pytorch.weights import WeightFiles

_USUAL_SIDE = 512
_USUAL_TOKENS = 512
# The largest states of a run, in multiples of its input.
_STATES_PER_PIXEL = 12
_STATES_PER_TOKEN = 8


def task_bytes(folder: Path, weights: WeightFiles, rows: int, item_bytes: int) -> int:
    """Estimate what a model takes with a run of `rows`. `item_bytes`: of a number of its dtype."""
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
