"""The perplexity of a text: by a model of transformers, and by a decoder with quantized weights."""

from collections.abc import Callable, Sequence
from math import exp
from typing import Any

import torch

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.scheduling.steps.sequence import Sequence as TextSequence
from frameworks.scheduling.steps.sequence import StepPart
from frameworks.types import DEFAULT_PRIORITY

_MAX_TOKENS = 384
_MIN_TOKENS = 48
# Half a minute of two cores, at two operations for each weight and token.
_MAX_OPERATIONS = 2e12
_PART_TOKENS = 128


def max_text_tokens(model: Any) -> int:
    """Return how many tokens of a text are computed: fewer of a large model, whose load would take minutes."""
    weights = sum(each.numel() for each in model.parameters())
    return max(_MIN_TOKENS, min(_MAX_TOKENS, int(_MAX_OPERATIONS / (2 * max(1, weights)))))


def model_perplexity(model: Any, token_ids: Sequence[int]) -> float | None:
    """Return the perplexity by a model of transformers; None for fewer than two tokens."""
    if len(token_ids) < 2:
        return None
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits[0]
    return _perplexity(-_log_probabilities(logits[:-1], token_ids[1:]), len(token_ids) - 1)


def decoder_perplexity(compute: Callable[[list[StepPart]], torch.Tensor], token_ids: Sequence[int]) -> float | None:
    """Return the perplexity by a decoder whose cache is free and holds the text; None for fewer than two tokens.

    `compute`: as PagedRunner.compute, from parts to logits [tokens, vocabulary].
    """
    if len(token_ids) < 2:
        return None
    request = SequenceRequest(0, tuple(token_ids), 1, Sampling(), priority=DEFAULT_PRIORITY)
    sequence = TextSequence(request, 0.0)
    sequence.blocks = list(range(-(-len(token_ids) // BLOCK_TOKENS)))
    loss = 0.0
    for start in range(0, len(token_ids), _PART_TOKENS):
        count = min(_PART_TOKENS, len(token_ids) - start)
        with torch.inference_mode():
            logits = compute([StepPart(sequence, start, count, is_scored=True)])
        following = token_ids[start + 1 : start + 1 + count]
        loss -= _log_probabilities(logits[: len(following)], following)
    return _perplexity(loss, len(token_ids) - 1)


def _log_probabilities(logits: torch.Tensor, token_ids: Sequence[int]) -> float:
    """Return the sum of the log probabilities of the tokens. `logits`: [tokens, vocabulary]."""
    wide = logits.float()
    own = wide.gather(1, torch.tensor(token_ids, device=wide.device)[:, None])[:, 0]
    return float((own - wide.logsumexp(-1)).sum())


def _perplexity(loss: float, count: int) -> float:
    return round(exp(min(loss / count, 700.0)), 4)
