"""Attention over texts of different lengths that follow one another in one row, by torch's own kernel."""

import importlib.util
from collections.abc import Callable

import torch

_MIN_CAPABILITY = (8, 0)
_DTYPES = (torch.float16, torch.bfloat16)

VarlenAttention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, float | None, tuple[int, int]], torch.Tensor
]
"""From query [tokens, heads, head size], key and value [tokens, key heads, head size] to [tokens, heads, head size].

Then `starts`, int32 [texts + 1], on the device: the first token of each text, and the end of the last; the most tokens
of a text; the factor of the scores, None for 1 / sqrt(head size); and how many tokens before and behind its own a token
attends to, -1 for all of its text.
"""


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scale: float | None,
    window: tuple[int, int],
) -> torch.Tensor:
    """Compute FlashAttention-2 (Dao, 2023), as VarlenAttention. Raises RuntimeError for head sizes that it has not."""
    # Its import takes as long as a small model, and only GPUs need it.
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        scale=scale,
        window_size=window,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, torch.Tensor)
    return attended


def unavailable_because(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why texts are padded on this device; None where `flash_attention` runs there."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "the device has no attention over texts of different lengths"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _MIN_CAPABILITY:
        return f"compute capability {major}.{minor} is below 8.0"
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return "this torch has no attention over texts of different lengths"
    if dtype not in _DTYPES:
        return f"FlashAttention needs float16 or bfloat16, got {str(dtype).removeprefix('torch.')}"
    return None
