"""Pool the hidden states of a text's tokens into one vector; normalize vectors, and turn logits into scores."""

import numpy as np

from frameworks.types import Array


def pool(hidden: Array, attention_mask: Array, pooling: str) -> Array:
    """Pool the hidden states [texts, longest, size] of the tokens into float32 vectors [texts, modes x size].

    `pooling`: a mode of sentence-transformers' Pooling module, or several, joined by "+". The vectors of several
    modes are concatenated. The last token of a text without tokens is zeros. `attention_mask`: 1 on the tokens to pool.
    """
    hidden = hidden.astype(np.float32, copy=False)
    pooled = [_pool_by(mode, hidden, attention_mask) for mode in pooling.split("+")]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)


def _pool_by(mode: str, hidden: Array, attention_mask: Array) -> Array:
    match mode:
        case "cls":
            first: Array = hidden[np.arange(len(hidden)), attention_mask.argmax(axis=1)]
            return first
        case "max":
            # Not -inf: it would remain for a text without tokens, and normalising it gives NaN.
            highest: Array = np.where(attention_mask[:, :, None] == 0, -1e9, hidden).max(axis=1)
            return highest.astype(np.float32)
        case "lasttoken":
            last = attention_mask.shape[1] - 1 - attention_mask[:, ::-1].argmax(axis=1)
            ends: Array = hidden[np.arange(len(hidden)), last]
            ends[~attention_mask.any(axis=1)] = 0
            return ends
    assert mode in ("mean", "mean_sqrt_len_tokens", "weightedmean"), mode
    weights = attention_mask.astype(np.float32)
    if mode == "weightedmean":
        weights *= np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    mean: Array = np.matmul(weights[:, None, :], hidden)[:, 0] / (
        np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total
    )
    return mean


def normalize_rows(vectors: Array) -> Array:
    """Scale each row to L2 length 1, as torch.nn.functional.normalize: a row of zeros stays zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def scores(logits: Array, multi_label: bool) -> Array:
    """Return probabilities [texts, labels] of raw logits: sigmoid if `multi_label`, else softmax over the labels."""
    logits = logits.astype(np.float64)
    if multi_label:
        # exp of negative values only, so that no logit overflows.
        decay = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, decay) / (1.0 + decay)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result
