"""Find when the tokens of a text of Whisper are spoken, by dynamic time warping of its attention to the sound.

As transformers' `_extract_token_timestamps`, whose two loops over tokens and states are one over diagonals here.
"""

from typing import Any

import numpy as np
import torch
from transformers.models.whisper.generation_whisper import _median_filter

_STATE_S = 0.02
"""Seconds of one state of the encoder, in transformers."""
_Matrix = np.ndarray[Any, np.dtype[np.float64]]
_BOTH, _TOKEN, _STATE = 0, 1, 2
"""The steps of a path: to the next token and state, to the next token, to the next state."""


def token_times(weights: torch.Tensor, filter_width: int) -> tuple[float, ...]:
    """Return the second at which each token begins. `weights`: float32 [heads, tokens, states]. `filter_width`: of the
    median filter over the states, an odd number.
    """
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = _median_filter((weights - mean) / std, filter_width).mean(dim=0)
    tokens, states = align(-matrix.double().numpy())
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    return tuple((states[jumps] * _STATE_S).tolist())


def align(costs: _Matrix) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Return the tokens and the states of the cheapest path through `costs`, float64 [tokens, states]."""
    steps = _cheapest_steps(costs)
    token, state = steps.shape[0] - 1, steps.shape[1] - 1
    tokens, states = [], []
    while token > 0 or state > 0:
        tokens.append(token - 1)
        states.append(state - 1)
        step = steps[token, state]
        token -= step != _STATE
        state -= step != _TOKEN
    return np.array(tokens[::-1]), np.array(states[::-1])


def _cheapest_steps(costs: _Matrix) -> "np.ndarray[Any, np.dtype[np.int8]]":
    """Return the step by which the cheapest path gets to each token and state, int8 [tokens + 1, states + 1].

    A cell depends on those of the two diagonals before its own. Sums are float32, as in transformers.
    """
    num_tokens, num_states = costs.shape
    steps = np.full((num_tokens + 1, num_states + 1), _STATE, np.int8)
    before = np.full(num_tokens + 1, np.inf, np.float32)
    before[0] = 0
    last = np.full(num_tokens + 1, np.inf, np.float32)
    for diagonal in range(2, num_tokens + num_states + 1):
        tokens = np.arange(max(1, diagonal - num_states), min(num_tokens, diagonal - 1) + 1)
        both, token, state = before[tokens - 1], last[tokens - 1], last[tokens]
        is_both = (both < token) & (both < state)
        is_token = ~is_both & (token < both) & (token < state)
        steps[tokens, diagonal - tokens] = np.where(is_both, _BOTH, np.where(is_token, _TOKEN, _STATE))
        cheapest = np.where(is_both, both, np.where(is_token, token, state))
        own = np.full(num_tokens + 1, np.inf, np.float32)
        own[tokens] = costs[tokens - 1, diagonal - tokens - 1] + cheapest
        before, last = last, own
    steps[0, :] = _STATE
    steps[:, 0] = _TOKEN
    return steps
