"""transformers' own model with our attention and our linear layers: an encoder, and a decoder over its states.

As in `decoders/transformers_decoder.py`, the model looks its attention function up in a table. Its layers get a cache
that keeps nothing: keys and values of the tokens are passed on to the attention, which has those of the blocks.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from copy import copy
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from frameworks.pytorch.generation.decoders.kv_cache import CacheSlots
from frameworks.pytorch.generation.decoders.transformers_decoder import put_linears
from frameworks.pytorch.generation.encoder_decoder.attention import Biases, DecoderAttention, TokenRows
from frameworks.pytorch.generation.encoder_decoder.layers import DecoderLayers, form_of
from frameworks.pytorch.generation.weights.linear import MakeLinear

_ATTENTION = "roundhouse_encoder_decoder"
_ATTENTION_ATTRIBUTE = "_roundhouse_attention"
_KNOWN_OPTIONS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "position_bias", "output_hidden_states"}
)
"""Options of an attention function that have no effect here; the bias by distance is computed for each row."""


class NotBatched(ValueError):
    """A model whose attention cannot be replaced, for the reason in the message."""


class EncoderDecoder:
    """A model of transformers whose decoder runs over the blocks of a KV cache. Used by one thread."""

    def __init__(self, model: Any, attention: DecoderAttention, max_tokens: int, make_linear: MakeLinear) -> None:
        """`model`: of a class that generates with an encoder and a decoder, on its device, in its dtype; its weights
        stay in use. `max_tokens`: of a text of the decoder.

        Raises NotBatched.
        """
        self._model = model
        self.attention = self._attention = attention
        self._encoder, decoder = model.get_encoder(), model.get_decoder()
        self._device: torch.device = model.device
        self._states = _PassedStates(attention)
        self._head = _LastRows()
        hidden_size = int(getattr(decoder.config, "hidden_size", 0) or decoder.config.d_model)
        self._no_states = torch.zeros(1, 1, hidden_size, dtype=model.dtype, device=self._device)
        _replace_positions(decoder, attention, max_tokens, self._no_states)
        form = form_of(decoder)
        self._layers: DecoderLayers | None = None
        if form is not None:
            self._layers = DecoderLayers(getattr(decoder, form.name), form, attention, make_linear)
            setattr(decoder, form.name, torch.nn.ModuleList([self._layers]))
        _put_attention(decoder, attention)
        put_linears(model, make_linear)
        head = model.get_output_embeddings()
        if head is None:
            raise NotBatched("it has no head of its own")
        head.register_forward_pre_hook(self._head)

    def encode(self, inputs: Mapping[str, "np.ndarray[Any, Any]"]) -> torch.Tensor:
        """Return the states of one source, [1, source tokens, hidden size]. `inputs`: of the encoder, a batch of 1."""
        on_device = {name: encoder_input(each, self._model) for name, each in inputs.items()}
        states: torch.Tensor = self._encoder(**on_device, return_dict=True).last_hidden_state
        return states

    @property
    def writes_sources_apart(self) -> bool:
        """Whether `write_source` may be called: else a pass of the decoder writes the source."""
        return self._layers is not None

    def write_source(self, states: torch.Tensor, writes: CacheSlots) -> None:
        """Write the keys and values of a source. `states`: of the encoder, [1, source tokens, hidden size]."""
        assert self._layers is not None
        self._layers.write_source(states, writes)

    def align(self, heads: SequenceOf[tuple[int, int]]) -> None:
        """Keep the attention of these heads to the source, (layer, head) each, where a sequence asks for it."""
        for layer, head in heads:
            self.attention.aligned_heads.setdefault(layer, []).append(head)

    def alignment(self) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return the attention of the last pass to its source, float32 [heads, rows, source tokens]."""
        weights, self.attention.aligned = self.attention.aligned, None
        assert weights
        found: np.ndarray[Any, np.dtype[np.float32]] = torch.cat(weights).cpu().numpy()
        return found

    def logits(
        self, token_ids: torch.Tensor, rows: TokenRows, states: torch.Tensor | None, logit_rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute tokens of the decoder, write their keys and values, and return [logit rows, vocabulary].

        `token_ids`: int64 [rows]. `states`: of the encoder, in the pass that reads them first. `logit_rows`: int64;
        None: all rows.
        """
        self._attention.rows, self._attention.source_states = rows, states
        self._states.writes = states is not None
        self._head.rows = logit_rows
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._no_states if states is None else states),
            decoder_input_ids=token_ids[None],
            past_key_values=self._states,
            use_cache=True,
            return_dict=True,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def encoder_input(values: "np.ndarray[Any, Any]", model: Any) -> torch.Tensor:
    """Return an input of an encoder on its device, features in its dtype."""
    found = torch.from_numpy(values).to(model.device)
    return found.to(model.dtype) if found.is_floating_point() else found


class _LastRows:
    """A hook of the head: it computes the rows of a pass whose logits are needed, int64; None: all."""

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None

    def __call__(self, _: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        return None if self.rows is None else (args[0].index_select(1, self.rows), *args[1:])


class _PassedStates(EncoderDecoderCache):  # type: ignore[misc]
    """A cache of transformers that keeps nothing."""

    def __init__(self, attention: DecoderAttention) -> None:
        super().__init__(_OwnStates(attention), _SourceStates(attention))
        self.is_updated = _Flags(self)
        self.writes = False
        """Whether the layers compute keys and values of the source."""


class _Flags(dict[int, bool]):
    def __init__(self, states: "_PassedStates") -> None:
        super().__init__()
        self._states = states

    def get(self, key: int, default: Any = None) -> bool:
        return not self._states.writes

    def __getitem__(self, key: int) -> bool:
        return not self._states.writes

    def __setitem__(self, key: int, value: bool) -> None:
        pass


class _OwnStates(Cache):  # type: ignore[misc]
    def __init__(self, attention: DecoderAttention) -> None:
        super().__init__(layers=[])
        self._attention = attention

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        self._attention.reads_source = False
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _SourceStates(Cache):  # type: ignore[misc]
    """Writes the keys and values of the source; in other passes its layers have none."""

    def __init__(self, attention: DecoderAttention) -> None:
        super().__init__(layers=[])
        self._attention = attention
        self.layers = [_NoStates(attention)] * attention.cache.shape.layers

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        self._attention.reads_source = True
        self._attention.write_source(layer_idx, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _NoStates:
    """A layer of the source whose keys and values are in the blocks."""

    def __init__(self, attention: DecoderAttention) -> None:
        self._attention = attention
        self.values = attention.nothing

    @property
    def keys(self) -> torch.Tensor:
        """Return keys without a token, float32 [1, heads, 0, head size]."""
        self._attention.reads_source = True
        return self.values


def _put_attention(decoder: Any, attention: DecoderAttention) -> None:
    """Let the layers of the decoder attend by ours; those of the encoder, whose config may be the same, do not."""
    configs: dict[int, Any] = {}
    count = 0
    for module in decoder.modules():
        config = getattr(module, "config", None)
        if config is not None:
            own = configs.setdefault(id(config), copy(config))
            own._attn_implementation = _ATTENTION
            module.config = own
        if isinstance(getattr(module, "layer_idx", None), int):
            setattr(module, _ATTENTION_ATTRIBUTE, attention)
        count += isinstance(module, DecoderLayers) or hasattr(module, _ATTENTION_ATTRIBUTE)
    if not count:
        raise NotBatched(f"{type(decoder).__name__} does not number its layers")


def biases_of(decoder: Any, max_tokens: int) -> Biases:
    """Return the addends of the scores by distance, float32 [heads, max_tokens], by layer; empty without any."""
    found: dict[int, torch.Tensor] = {}
    for module in decoder.modules():
        table = getattr(module, "relative_attention_bias", None)
        if isinstance(table, torch.nn.Embedding) and getattr(module, "is_causal", True):
            distances = torch.arange(max_tokens, device=table.weight.device)
            buckets = _buckets(module, distances)
            found[module.layer_idx or 0] = table(buckets).t().float().contiguous()
    return found


def _buckets(module: Any, distances: torch.Tensor) -> torch.Tensor:
    of: Callable[..., torch.Tensor] = module._relative_position_bucket
    if "bidirectional" in of.__code__.co_varnames:
        return of(
            -distances,
            bidirectional=False,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
    return of(-distances)


class _Captured(Exception):
    """The table of positions is known."""


class _Positions(torch.nn.Module):
    """The position embeddings of each row of a pass, instead of those of adjacent positions."""

    def __init__(self, attention: DecoderAttention, table: torch.Tensor) -> None:
        super().__init__()
        self._attention = attention
        self.table = table

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return [1, rows, hidden size]."""
        rows = self._attention.rows
        assert rows is not None
        return self.table.index_select(0, rows.positions)[None]


def _replace_positions(decoder: Any, attention: DecoderAttention, max_tokens: int, states: torch.Tensor) -> None:
    """Let the decoder embed the position of each row: the table is what its own module returns for adjacent ones."""
    original = getattr(decoder, "embed_positions", None)
    if original is None:
        return
    pad = getattr(decoder.config, "pad_token_id", None)
    token_ids = torch.full((1, max_tokens), 1 if pad == 0 else 0, device=states.device)
    captured: list[torch.Tensor] = []

    def capture(_: Any, __: Any, ___: Any, output: torch.Tensor) -> None:
        captured.append(output)
        raise _Captured

    handle = original.register_forward_hook(capture, with_kwargs=True)
    try:
        decoder(input_ids=token_ids, encoder_hidden_states=states, use_cache=False)
    except _Captured:
        pass
    finally:
        handle.remove()
    table = captured[0].reshape(-1, captured[0].shape[-1])
    if len(table) != max_tokens:
        raise NotBatched("its positions are of another form")
    decoder.embed_positions = _Positions(attention, table.to(states.dtype).clone())


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' attention functions: [1, heads, rows, head size] → [1, rows, heads, head size]."""
    scaling = options.pop("scaling", None)
    strange = [name for name, given in options.items() if name not in _KNOWN_OPTIONS and given is not None]
    if strange or attention_mask is not None:
        raise NotBatched(f"{type(module).__name__} needs {', '.join(strange) or 'a mask'} of its attention")
    attention: DecoderAttention = getattr(module, _ATTENTION_ATTRIBUTE)
    layer: Any = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    attend = attention.to_source if attention.reads_source else attention.to_own
    return attend(layer, query, key, value, scale).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)
