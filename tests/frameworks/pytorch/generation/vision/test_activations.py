"""Memory of activations: that of the tensors at a time, and its share of a model's bytes."""

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.generation.vision.activations import ActivationPeak
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.support.models.vision.catalogue import MAKERS


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=20))
def test_peak_is_most_bytes_at_a_time(steps: list[tuple[int, bool]]) -> None:
    weight = torch.ones(5000)
    kept: list[torch.Tensor] = []
    most = live = 0
    with torch.inference_mode(), ActivationPeak() as peak:
        for size, is_kept in steps:
            made = weight[:size] * 2
            most = max(most, live + 4 * size)
            made.view(-1, 1)[:, 0].add_(1)
            if is_kept:
                kept.append(made)
                live += 4 * size
            del made
    assert peak.peak_bytes == most


def test_larger_images_take_more_memory(tmp_path: Path) -> None:
    MAKERS["qwen2_vl"](tmp_path)
    sizes = []
    for max_pixels in (2_000, 20_000):
        model = load_generating(tmp_path, kv_cache_bytes=1 << 24, max_image_pixels=max_pixels)
        sizes.append(model.spec.memory_bytes)
        model.close()
    assert sizes[1] > sizes[0]
