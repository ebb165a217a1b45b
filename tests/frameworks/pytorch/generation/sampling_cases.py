"""Rows of logits, and the sequences that sample from them."""

import json
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from frameworks.generation.sequences import SequenceRequest, TokenMatcher
from frameworks.generation.types import Constraint, Sampling
from frameworks.pytorch.generation.sampling.masking import MaskWords
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState

SIZE = 1000
"""Number of logits: more than tokens of the tokenizer, and not a multiple of 32."""
ENDS = (1, 2)
CPU = torch.device("cpu")


class AllowedIds:
    """A constraint that allows the same tokens at every step."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids
        self.accepted: list[int] = []

    def fill_mask(self, mask: MaskWords) -> None:
        bits = np.zeros(mask.size * 32, np.uint8)
        bits[list(self.token_ids)] = 1
        mask |= np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        return next((i for i, each in enumerate(token_ids) if each not in self.token_ids), len(token_ids))

    def copy(self) -> "AllowedIds":
        return AllowedIds(*self.token_ids)


def request_of(sampling: Sampling, **fields: Any) -> SequenceRequest:
    asked: dict[str, Any] = {"sequence_id": 0, "prompt_ids": (0,), "max_tokens": 100, "priority": 5} | fields
    return SequenceRequest(sampling=sampling, **asked)


def state_of(
    vocabulary_size: int, *, text: Sequence[int] = (), request: dict[str, Any] | None = None, **sampling: Any
) -> SamplingState:
    """Return a sequence that has generated `text`, with these fields of Sampling."""
    state = SamplingState(request_of(Sampling(**{"seed": 0} | sampling), **request or {}), vocabulary_size)
    for token_id in text:
        state.accept(token_id)
    return state


def random_logits(rows: int, vocabulary_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary_size, generator=torch.Generator().manual_seed(seed)) * scale


def sample(logits: torch.Tensor, *states: SamplingState) -> list[Sampled]:
    """Return the sampled token of every row; none may fail."""
    results = Sampler(logits.device, logits.shape[-1]).sample(logits, states)
    sampled = [result for result in results if isinstance(result, Sampled)]
    assert len(sampled) == len(results), results
    return sampled


def ids(logits: torch.Tensor, *states: SamplingState) -> list[int]:
    return [each.token_id for each in sample(logits, *states)]


def shares(logits: torch.Tensor, rounds: int, **sampling: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """How much of the numbers from 0 to 1 draws which token of the one row `logits` [vocabulary], times `rounds`.

    Exact to 1: whatever the order of the tokens, each has one stretch, and `rounds` numbers lie evenly over all.
    """
    vocabulary_size = len(logits)
    text, request = sampling.pop("text", ()), sampling.pop("request", None)
    one = state_of(vocabulary_size, text=text, request=request, **sampling)
    states = [copy(one) for _ in range(rounds)]
    for number, state in enumerate(states):
        state.uniform = (number + 0.5) / rounds
    drawn = ids(logits.expand(rounds, vocabulary_size).contiguous(), *states)
    return np.bincount(drawn, minlength=vocabulary_size).astype(np.float64)


def allowed(matcher: TokenMatcher, size: int = SIZE) -> list[int]:
    mask = np.full(-(-size // 32), -1, np.int32)
    matcher.fill_mask(mask)
    bits: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return bits


def id_of(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.token_to_id(text)
    assert token_id is not None
    return token_id


def choice(*texts: str) -> Constraint:
    return Constraint("choice", json.dumps(texts))
