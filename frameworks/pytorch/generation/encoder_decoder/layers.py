"""The decoder layers of BART, T5 and related models, without a call of a module for each of their parts.

A step of one token computes little, so that the calls of transformers' modules take longer than their arithmetic. One
module stands for all layers of the decoder; embeddings, the last norm and the head stay transformers' own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from frameworks.core.progress import step
from frameworks.pytorch.generation.decoders.kv_cache import CacheShape, CacheSlots
from frameworks.pytorch.generation.encoder_decoder.attention import DecoderAttention
from frameworks.pytorch.generation.weights.linear import Linear, MakeLinear, PlainLinear

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecoderForm:
    """The paths of a layer's parts. `own`, `source`: query, key, value and output of each attention. `up`: one Linear,
    or the gate and what it multiplies. `norms`: of own attention, of that to the source, of the feed-forward block;
    before each if `is_pre_norm`, else of the sum after it.
    """

    name: str
    own: tuple[str, str, str, str]
    source: tuple[str, str, str, str]
    up: tuple[str, ...]
    activation: str
    down: str
    norms: tuple[str, str, str]
    is_pre_norm: bool = True


def _attention(name: str, query: str, key: str, value: str, output: str) -> tuple[str, str, str, str]:
    return f"{name}.{query}", f"{name}.{key}", f"{name}.{value}", f"{name}.{output}"


_BART = DecoderForm(
    "layers",
    _attention("self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
    _attention("encoder_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
    ("fc1",), "activation_fn", "fc2",
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
)  # fmt: skip
_T5 = DecoderForm(
    "block",
    _attention("layer.0.SelfAttention", "q", "k", "v", "o"),
    _attention("layer.1.EncDecAttention", "q", "k", "v", "o"),
    ("layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"), "layer.2.DenseReluDense.act",
    "layer.2.DenseReluDense.wo",
    ("layer.0.layer_norm", "layer.1.layer_norm", "layer.2.layer_norm"),
)  # fmt: skip
_FORMS = (
    _BART,
    replace(_BART, is_pre_norm=False),
    _T5,
    replace(_T5, up=("layer.2.DenseReluDense.wi",)),
)
_RETURNED = {"T5Block": 3, "MT5Block": 3, "LongT5Block": 5, "UMT5Block": 0}
"""By class of a layer of T5: the size of the tuple whose first item is its states; 0: it returns them alone."""
_ROWS, _SOURCE = 3, 4
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Of the states of a trial, relative to their spread: another order of the parts is off by about 1."""


@dataclass(frozen=True, slots=True)
class _Layer:
    own: Linear
    own_output: Linear
    query: Linear
    key_value: Linear
    source_output: Linear
    up: Linear
    down: Linear
    norms: tuple[Activation, Activation, Activation]


class DecoderLayers(torch.nn.Module):
    """All layers of a decoder. Used by one thread."""

    def __init__(
        self, layers: Sequence[torch.nn.Module], form: DecoderForm, attention: DecoderAttention, make: MakeLinear
    ) -> None:
        super().__init__()
        first: Any = layers[0]
        self._form = form
        self._attention = attention
        self._scale = _scale_of(first, form)
        self._activation: Activation = attrgetter(form.activation)(first)
        self._layers = [_layer_of(each, form, make) for each in layers]
        self._is_gated = len(form.up) > 1
        self._returned = _RETURNED.get(type(first).__name__, 0)

    @property
    def linears(self) -> list[Linear]:
        """All linear layers."""
        names = ("own", "own_output", "query", "key_value", "source_output", "up", "down")
        return [getattr(layer, name) for layer in self._layers for name in names]

    def write_source(self, states: torch.Tensor, writes: CacheSlots) -> None:
        """Write the keys and values of a source in all layers. `states`: [1, source tokens, hidden size]."""
        for index, layer in enumerate(self._layers):
            self._attention.write_source(index, *self._of_source(layer, states), writes)

    def _of_source(self, layer: _Layer, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, [1, heads, source tokens, head size] each."""
        shape = self._attention.cache.shape
        both = layer.key_value(states[0]).view(states.shape[1], -1, shape.head_size).transpose(0, 1)[None]
        return both[:, : shape.heads], both[:, shape.heads :]

    def forward(self, states: torch.Tensor, *others: Any, **named: Any) -> Any:
        """[1, rows, hidden size] → the same after all layers."""
        rows = states[0]
        source = self._attention.source_states
        for index, layer in enumerate(self._layers):
            rows = self._compute(layer, index, rows, source)
        found = rows[None]
        return (found, *[None] * (self._returned - 1)) if self._returned else found

    def _compute(self, layer: _Layer, index: int, rows: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
        attention, is_pre = self._attention, self._form.is_pre_norm
        of_own, of_source, of_block = layer.norms
        heads, size = attention.cache.shape.heads, attention.cache.shape.head_size
        given = of_own(rows) if is_pre else rows
        projected = layer.own(given).view(len(rows), -1, size).transpose(0, 1)[None]
        query, key, value = projected[:, : -2 * heads], projected[:, -2 * heads : -heads], projected[:, -heads:]
        attended = attention.to_own(index, query, key, value, self._scale)
        rows = layer.own_output.fused_add(attended.reshape(len(rows), -1), rows)
        rows = rows if is_pre else of_own(rows)
        given = of_source(rows) if is_pre else rows
        key = value = attention.nothing
        if source is not None:
            key, value = self._of_source(layer, source)
            attention.write_source(index, key, value)
        query = layer.query(given).view(len(rows), -1, size).transpose(0, 1)[None]
        attended = attention.to_source(index, query, key, value, self._scale)
        rows = layer.source_output.fused_add(attended.reshape(len(rows), -1), rows)
        rows = rows if is_pre else of_source(rows)
        given = of_block(rows) if is_pre else rows
        rows = layer.down.fused_add(self._gated(layer.up(given)), rows)
        return rows if is_pre else of_block(rows)

    def _gated(self, states: torch.Tensor) -> torch.Tensor:
        if not self._is_gated:
            return self._activation(states)
        gate, factor = states.chunk(2, -1)
        return self._activation(gate) * factor


def form_of(decoder: Any) -> DecoderForm | None:
    """Return the form of a decoder's layers; None where they have none that is known."""
    for form in _FORMS:
        layers = getattr(decoder, form.name, None)
        if isinstance(layers, torch.nn.ModuleList) and _has(layers, form) and _is_same(layers[0], form):
            return form
    return None


def _has(layers: torch.nn.ModuleList, form: DecoderForm) -> bool:
    paths = (*form.own, *form.source, *form.up, form.down)
    try:
        linears = [attrgetter(path)(layer) for layer in layers for path in paths]
        others = [attrgetter(path)(layer) for layer in layers for path in (*form.norms, form.activation)]
    except AttributeError:
        return False
    return bool(others) and all(type(each) is torch.nn.Linear for each in linears)


def _is_same(layer: Any, form: DecoderForm) -> bool:
    """Return whether a layer of BART's parts has its norms where the form says. T5's are all alike."""
    if form.name == _T5.name:
        return type(layer).__name__ in _RETURNED
    weight = attrgetter(form.down)(layer).weight
    generator = torch.Generator().manual_seed(0)
    states, source = (torch.randn(1, count, len(weight), generator=generator).to(weight) for count in (_ROWS, _SOURCE))
    found = layer(states, None, source)
    expected = found[0] if isinstance(found, tuple) else found
    module = attrgetter(form.own[0].rpartition(".")[0])(layer)
    attention: Any = _PlainAttention(module.num_heads, module.head_dim, source)
    own = DecoderLayers([layer], form, attention, PlainLinear)(states)
    off = float((own - expected).float().square().mean().sqrt()) / max(float(expected.float().std()), 1e-6)
    return off <= _TOLERANCE[weight.dtype]


class _PlainAttention:
    """A DecoderAttention without blocks, for one pass over a text and its source."""

    def __init__(self, heads: int, head_size: int, source_states: torch.Tensor) -> None:
        self.shape = CacheShape(1, heads, head_size, source_states.dtype)
        self.cache, self.nothing, self.source_states = self, None, source_states

    def write_source(self, *_: Any) -> None:
        """Write nothing: the pass has the keys and values."""

    def to_own(self, _: int, *given: Any) -> torch.Tensor:
        """As DecoderAttention.to_own."""
        query, key, value, scale = given
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale
        ).transpose(1, 2)

    def to_source(self, _: int, *given: Any) -> torch.Tensor:
        """As DecoderAttention.to_source."""
        query, key, value, scale = given
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale).transpose(1, 2)


def _scale_of(layer: Any, form: DecoderForm) -> float:
    module = attrgetter(form.own[0].rpartition(".")[0])(layer)
    return float(module.scaling)


def _layer_of(layer: Any, form: DecoderForm, make: MakeLinear) -> _Layer:
    def joined(*paths: str) -> Linear:
        linears = [attrgetter(path)(layer) for path in paths]
        weight = linears[0].weight if len(linears) == 1 else torch.cat([each.weight for each in linears])
        biases = [each.bias if each.bias is not None else each.weight.new_zeros(len(each.weight)) for each in linears]
        has_bias = any(each.bias is not None for each in linears)
        step()
        return make(weight, torch.cat(biases) if has_bias else None)

    own, source = form.own, form.source
    norms = [attrgetter(path)(layer) for path in form.norms]
    return _Layer(
        joined(*own[:3]),
        joined(own[3]),
        joined(source[0]),
        joined(source[1], source[2]),
        joined(source[3]),
        joined(*form.up),
        joined(form.down),
        (_norm_of(norms[0]), _norm_of(norms[1]), _norm_of(norms[2])),
    )


def _norm_of(module: Any) -> Activation:
    """Return a norm as one operator of torch. T5's has no bias and no mean."""
    weight, sizes = module.weight, (len(module.weight),)
    if isinstance(module, torch.nn.LayerNorm):
        return partial(
            torch.nn.functional.layer_norm, normalized_shape=sizes, weight=weight, bias=module.bias, eps=module.eps
        )
    return partial(torch.nn.functional.rms_norm, normalized_shape=sizes, weight=weight, eps=module.variance_epsilon)
