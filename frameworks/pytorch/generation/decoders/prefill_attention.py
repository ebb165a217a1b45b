"""The attention of a long prefill by matmuls, block by block of its tokens.

torch's attention does not use the CPU's instructions for bfloat16, and computes scores outside a sliding window: a
prompt of 1,000 tokens takes 1.8 times as long, and with a window of 256 tokens four times (12 query heads of size 64,
4 key heads, one core). In float32 without a window it is as fast.
"""

import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.generation.decoders.kv_cache import masked_bias
from frameworks.pytorch.generation.decoders.step_layout import PrefillPart

# Fewer tokens are not worth the calls.
_MIN_TOKENS, _MIN_LENGTH = 64, 257
# Blocks of tokens, and of the keys that a window leaves out.
_BLOCK = 64
_MIN_WINDOWS = 2
# oneDNN compiles machine code for each size, so the number of keys is rounded up, by one in eight at most.
_ROUNDING_BITS = 4


def are_blocks_faster(part: PrefillPart, query: torch.Tensor, window: int | None) -> bool:
    """Return whether `attend_in_blocks` is faster than torch's attention.

    `query`: [tokens, query heads, head size], float32 or bfloat16 where it may be.
    """
    length = part.start + part.num_tokens
    if query.device.type != "cpu" or part.spans or part.num_tokens < _MIN_TOKENS or length < _MIN_LENGTH:
        return False
    if query.dtype == torch.bfloat16:
        return kernels.multiplies_bf16()
    return query.dtype == torch.float32 and window is not None and length > _MIN_WINDOWS * window


def attend_in_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """Attend for the last tokens of a sequence, over all of it. Return shape and dtype of `query`.

    `query`: [tokens, query heads, size]. `key`, `value`: [all tokens, heads, size]. `window`: tokens that a query
    attends to, its own included.
    """
    count, length, heads, size = len(query), *key.shape
    blocks, start, group = -(-count // _BLOCK), length - count, query.shape[1] // heads
    keys, values = (_padded(each, start + blocks * _BLOCK) for each in (key, value))
    queries = query.new_zeros(blocks * _BLOCK, heads, group, size)
    torch.mul(query.view(count, heads, group, size), scale, out=queries[:count])
    queries = queries.view(blocks, _BLOCK, heads, group, size).permute(0, 2, 3, 1, 4).reshape(blocks, heads, -1, size)
    attended = torch.empty_like(queries)
    masks: dict[tuple[int, int], torch.Tensor] = {}
    for index in range(blocks):
        first = start + index * _BLOCK
        low = 0 if window is None else max(0, first - window + 1) // _BLOCK * _BLOCK
        high = low + _rounded(first + _BLOCK - low)
        scores = torch.bmm(queries[index], keys[:, low:high].transpose(1, 2))
        # Without a window all earlier tokens are visible.
        begin = first if window is None else low
        mask = masks.get((begin - first, high - first))
        if mask is None:
            mask = _mask(_BLOCK, begin - first, high - first, window, query.dtype).repeat(group, 1)
            masks[begin - first, high - first] = mask
        scores[:, :, begin - low :] += mask
        torch.bmm(torch.softmax(scores, -1), values[:, low:high], out=attended[index])
    attended = attended.view(blocks, heads, group, _BLOCK, size).permute(0, 3, 1, 2, 4)
    return attended.reshape(blocks * _BLOCK, heads * group, size)[:count]


def _padded(states: torch.Tensor, length: int) -> torch.Tensor:
    """Return [heads, tokens, size] of [tokens, heads, size], zeros behind the tokens, as far as a block reads."""
    padded = states.new_zeros(states.shape[1], _BLOCK + _rounded(length), states.shape[2])
    padded[:, : len(states)] = states.transpose(0, 1)
    return padded


def _rounded(length: int) -> int:
    step = max(_BLOCK, 1 << max(0, length.bit_length() - _ROUNDING_BITS))
    return -(-length // step) * step


def _mask(count: int, begin: int, end: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return [count, end - begin] to add to the scores of tokens 0 to `count` with the keys of `begin` to `end`."""
    own, other = torch.arange(count)[:, None], torch.arange(begin, end)
    is_visible = other <= own
    if window is not None:
        is_visible &= other > own - window
    return torch.zeros(is_visible.shape, dtype=dtype).masked_fill_(~is_visible, masked_bias(dtype))
