"""Choose the spans of tokens that are the most likely answers.

The arithmetic is that of `QuestionAnsweringPipeline` of transformers 4.57, Copyright The HuggingFace Team, licensed
under the Apache License, Version 2.0. Its method is that of DrQA (Chen et al., 2017).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASKED_LOGIT = -10000.0

Floats = NDArray[np.float32]
Spans = tuple[NDArray[np.intp], NDArray[np.intp], Floats]


def select_starts_ends(
    start: Floats,
    end: Floats,
    p_mask: NDArray[Any],
    attention_mask: NDArray[Any] | None,
    *,
    top_k: int,
    max_answer_len: int,
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats, float]:
    """Return the first and last tokens of the best spans, their scores, and the score of no answer.

    `start`, `end`: logits [1, tokens]. `p_mask`: 1 for tokens that are in no answer, [1, tokens].
    """
    wanted = np.abs(p_mask.astype(np.int64) - 1)
    if attention_mask is not None:
        wanted = wanted & attention_mask
    starts, ends = (_probabilities(logits, wanted) for logits in (start, end))
    null_score = float(starts[0, 0] * ends[0, 0])  # the first token stands for no answer
    starts[0, 0] = ends[0, 0] = 0.0
    return (*decode_spans(starts, ends, top_k, max_answer_len, wanted), null_score)


def _probabilities(logits: Floats, wanted: NDArray[Any]) -> Floats:
    masked = np.where(wanted == 0, np.float32(_MASKED_LOGIT), logits)
    powers = np.exp(masked - masked.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(), dtype=np.float32)


def decode_spans(starts: Floats, ends: Floats, top_k: int, max_answer_len: int, wanted: NDArray[Any]) -> Spans:
    """Return the first and last tokens of the `top_k` best spans of up to `max_answer_len` tokens, and their scores.

    `starts`, `ends`: probabilities [1, tokens]. `wanted`: 0 for tokens that are in no answer; such spans are dropped.
    """
    outer = np.matmul(np.expand_dims(starts, -1), np.expand_dims(ends, 1))
    candidates = np.tril(np.triu(outer), max_answer_len - 1)
    flat = candidates.flatten()
    if top_k == 1:
        order = np.array([np.argmax(flat)])
    elif len(flat) <= top_k:
        order = np.argsort(-flat)
    else:
        best = np.argpartition(-flat, top_k)[:top_k]
        order = best[np.argsort(-flat[best])]
    first, last = np.unravel_index(order, candidates.shape)[1:]
    known = wanted.nonzero()  # both axes, so that token 0 is always among them
    kept = np.isin(first, known) & np.isin(last, known)
    return first[kept], last[kept], candidates[0, first[kept], last[kept]]
