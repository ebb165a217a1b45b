"""Let the layers of a transformers model compute all texts of a run as one row of tokens.

transformers' models look their attention function and their mask up in a table, by a name. Ours find the run of their
thread: the boundaries of the texts in a row of tokens, or whether any text is padded.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from frameworks.pytorch.encoder_layers.embeddings import Embeddings
from frameworks.pytorch.encoder_layers.token_rows import TokenRow, computing, row_of_thread
from frameworks.pytorch.encoders.varlen_attention import VarlenAttention

if TYPE_CHECKING:
    from frameworks.pytorch.encoder_layers.layers import CompiledLayers

_ATTENTION = "roundhouse_texts"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of texts in a thread. `states`: computes the last states [texts, longest, size] from a row of tokens; None
    where the model gets padded texts. `is_padded`: whether any of them has padding.
    """

    states: Callable[[], torch.Tensor] | None
    is_padded: bool


class _Thread(threading.local):
    run: Run | None = None
    layers: "PackedLayers | None" = None
    """Those that compute a row of tokens."""


_THREAD = _Thread()


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Let the models of this thread compute texts this way."""
    _THREAD.run = run
    try:
        yield
    finally:
        _THREAD.run = None


class PackedLayers:
    """The layers of one model. `reason`: why they cannot take a row of tokens; None where a trial may show it."""

    def __init__(self, model: Any, attention: VarlenAttention | None, compiled: "CompiledLayers | None" = None) -> None:
        """`model`: of transformers. It gets the attention function and the masks of this module; where `attention` is
        None its layers have been changed to read `row_of_thread`: `compiled` are those.
        """
        self.reason: str | None = None
        self.largest_window = None if compiled is None else compiled.largest_window
        """Of the attention of all rows so far, in tokens on a side with the own one; 0 without any, None before."""
        self.are_compiled = attention is None
        self._attention, self._compiled = attention, compiled
        self._embed: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._tables: Embeddings | None = None
        self._is_noted = compiled is None
        self._model = getattr(model, "base_model", None)
        if attention is not None:
            # A language model that scores answers is within another module.
            looks_up = model if hasattr(model, "set_attn_implementation") else getattr(model, "model", None)
            if looks_up is None or looks_up.config._attn_implementation != "sdpa":
                self.reason = f"{type(model).__name__} needs an attention of its own"
                return
            looks_up.set_attn_implementation(_ATTENTION)
        parameters = signature(self._model.forward).parameters if self._model is not None else {}
        if self._model is None or "position_ids" not in parameters:
            self.reason = f"{type(model).__name__} takes no positions"
            return
        self._reads_types = "token_type_ids" in parameters
        self._model.__class__ = _packing(type(self._model))  # type: ignore[arg-type]

    def states(self, row: TokenRow) -> torch.Tensor:
        """Return the last states [tokens, size]."""
        if self._embed is not None:
            assert self._compiled is not None
            starts = row.starts.tolist()
            rows = None if self._tables is None else self._tables.rows_of(row.values)
            if self._tables is not None and rows is not None:
                return self._compiled.of_tokens(self._tables, rows, starts)
            return self._compiled(self._embed(row.values), starts)[0]
        assert self._model is not None
        noted: list[tuple[torch.Tensor, torch.Tensor]] | None = None if self._is_noted else []
        _THREAD.layers = self
        try:
            with computing(replace(row, noted=noted)):
                values = row.values[:, None]
                types = {"token_type_ids": values[2]} if self._reads_types else {}
                # transformers passes a mask of four axes as it is. Without any it would look for texts in the
                # positions, and wait for the device.
                mask = values.new_ones(1, 1, 1, 1, dtype=torch.bool)
                output = self._model(input_ids=values[0], position_ids=values[1], attention_mask=mask, **types)
                states: torch.Tensor = output.last_hidden_state
                if noted:
                    self._note(row, *noted[0], states)
                return states[0]
        finally:
            _THREAD.layers = None

    def _note(self, row: TokenRow, given: torch.Tensor, found: torch.Tensor, states: torch.Tensor) -> None:
        """Leave transformers' code out from now on, where the model is its embeddings and its layers. That code takes
        a millisecond. `given`, `found`: before and after the layers. `states`: the last ones of the model.
        """
        self._is_noted = True
        embeddings = getattr(self._model, "embeddings", None)
        if found is not states or not isinstance(embeddings, torch.nn.Module):
            return
        names = signature(embeddings.forward).parameters
        if "position_ids" in names:
            embed = partial(_embedded, embeddings, "token_type_ids" in names)
            if torch.equal(embed(row.values), given):
                self._embed = embed
                self._tables = self._tables_of(row, embeddings, given)

    def _tables_of(self, row: TokenRow, embeddings: torch.nn.Module, expected: torch.Tensor) -> Embeddings | None:
        """Return the tables of embeddings whose states compiled code computes too. `expected`: [1, tokens, size]."""
        try:
            tables = Embeddings(embeddings)
        except (AttributeError, ValueError):
            return None
        rows = tables.rows_of(row.values)
        assert self._compiled is not None
        if rows is None or expected.dtype != torch.float32:
            return None
        found = self._compiled.of_tokens(tables, rows, row.starts.tolist(), range(0))
        return tables if torch.allclose(found, expected[0], rtol=0, atol=1e-5) else None

    def attend(
        self, row: TokenRow, rows: list[torch.Tensor], scale: float | None, window: int | None, is_causal: bool
    ) -> torch.Tensor:
        """Attend within each text. `rows`: query, key and value, as VarlenAttention. `window`: tokens on a side, with
        the own one.
        """
        self.largest_window = max(self.largest_window or 0, window or 0)
        before = -1 if window is None else window - 1
        assert self._attention is not None
        query, key, value = rows
        sides = (before, 0 if is_causal else before)
        return self._attention(query, key, value, row.starts, row.longest, scale, sides)


def _embedded(embeddings: torch.nn.Module, reads_types: bool, values: torch.Tensor) -> torch.Tensor:
    """Return the states [1, tokens, size] of a row's values."""
    types = {"token_type_ids": values[2:3]} if reads_types else {}
    states: torch.Tensor = embeddings(input_ids=values[0:1], position_ids=values[1:2], **types)
    return states


@cache
def _packing(kind: type) -> type:
    """Return a class of models that packs the texts of a run. It has the name of its base: transformers looks by it."""
    original: Any = kind.forward  # type: ignore[attr-defined]

    @wraps(original)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        run = _THREAD.run
        if run is None or run.states is None or row_of_thread() is not None:
            return original(self, *arguments, **options)
        states = run.states()
        # In one row of tokens it found the first of one text alone.
        pooler = getattr(self, "pooler", None)
        pooled = pooler(states) if isinstance(pooler, torch.nn.Module) else None
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=states, pooler_output=pooled)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names | {"forward": forward})


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' attention functions: [1, heads, tokens, head size] → [1, tokens, heads, head size]."""
    row, layers = row_of_thread(), _THREAD.layers
    if row is None or layers is None:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return attended
    scaling, window, is_causal = (options.pop(name, None) for name in ("scaling", "sliding_window", "is_causal"))
    is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    rows = [each[0].transpose(0, 1) for each in (query, key, value)]
    found = layers.attend(row, rows, scaling, window, is_causal)
    # As transformers' own functions: some models take a view of it.
    return found[None].contiguous(), None


def _mask(*arguments: Any, **options: Any) -> torch.Tensor | None:
    """As transformers' mask of sdpa, which asks the device whether any text is padded; the host knows it here."""
    run = _THREAD.run
    if run is not None:
        if run.is_padded:
            options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        else:
            options["attention_mask"] = None
    mask: torch.Tensor | None = sdpa_mask(*arguments, **options)
    return mask


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, _mask)
