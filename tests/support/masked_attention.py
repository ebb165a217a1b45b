"""Attention over texts in one row of tokens by a mask of all pairs: the reference of FlashAttention, on any device."""

import torch


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scale: float | None,
    window: tuple[int, int],
) -> torch.Tensor:
    """As VarlenAttention. The host reads nothing, so that a simulated graph may hold it."""
    at = torch.arange(len(query), dtype=torch.int32, device=query.device)
    texts = torch.searchsorted(starts, at, right=True)
    distance = at[:, None] - at[None]
    is_seen = texts[:, None] == texts[None]
    for side, limit in ((distance, window[0]), (-distance, window[1])):
        if limit >= 0:
            is_seen = is_seen & (side <= limit)
    # A kernel computes no rows behind the most tokens of a text.
    is_seen = is_seen & (at - starts[texts - 1] < longest)[None]
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    attended: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=is_seen, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended[0].transpose(0, 1)
