"""Biases of attention scores by the distance of key and query, from one table for all layers of an encoder."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any
from weakref import ref

import torch

from frameworks.pytorch.encoder_layers.token_rows import row_of_thread

_METHOD = "compute_position_bias"


class RelativeBias:
    """The biases of one encoder, of MPNet's form."""

    def __init__(self, encoder: Any) -> None:
        """`encoder`: has the layers. It is not held."""
        self._table: torch.Tensor = encoder.relative_attention_bias.weight
        self._bucket: Callable[[torch.Tensor], torch.Tensor] = encoder.relative_position_bucket
        self._encoder = ref(encoder)

    def of_distances(self, longest: int) -> torch.Tensor:
        """Return those of texts of up to `longest` tokens: float32 [heads, 2 * longest - 1], by the positions of
        key - query, from 1 - longest on.
        """
        buckets = self._bucket(torch.arange(1 - longest, longest))
        return self._table.detach()[buckets].T.float().contiguous()

    def of_text(self, tokens: int) -> torch.Tensor:
        """Return those of a text as transformers' layers get them: [1, heads, queries, keys] in the table's dtype."""
        positions = torch.arange(tokens)
        distances = positions - positions[:, None] + tokens - 1
        return self.of_distances(tokens)[None, :, distances].to(self._table.dtype)

    def install(self) -> None:
        """Let the encoder compute none for a row of tokens: they would be of all pairs of its tokens."""
        encoder = self._encoder()
        assert encoder is not None
        encoder.__class__ = _class_without(type(encoder))  # type: ignore[arg-type]


def relative_bias_of(encoder: torch.nn.Module) -> RelativeBias | None:
    """Return the biases of an encoder; None where it has none, or those of another form."""
    parts = ("relative_attention_bias", "relative_position_bucket", _METHOD)
    return RelativeBias(encoder) if all(hasattr(encoder, each) for each in parts) else None


@cache
def _class_without(kind: type) -> type:
    """Return a class of encoders without biases in a row of tokens. It has the name of its base: transformers looks by
    it.
    """
    original: Any = getattr(kind, _METHOD)

    @wraps(original)
    def compute(self: Any, *arguments: Any, **named: Any) -> Any:
        return None if row_of_thread() is not None else original(self, *arguments, **named)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names | {_METHOD: compute})
