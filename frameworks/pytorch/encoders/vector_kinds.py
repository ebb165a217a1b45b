"""An encoder with heads for sparse and multiple vectors beside its embedding (bge-m3): one run for all three.

Source: `M3Embedder` of FlagEmbedding, whose files `sparse_linear.pt` and `colbert_linear.pt` are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.pytorch.device.pinned import pinned_arrays
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.quantize import held_bytes
from frameworks.text.pickled_tensors import HEADS, read_pickled_tensors
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Array, ModelSpec, TokenBatch, Vectors

log = structlog.get_logger(__name__)

_WITHOUT_WEIGHT = ("cls_token", "eos_token", "pad_token", "unk_token")
_LARGEST_VECTOR = 65_536


@dataclass(frozen=True, slots=True)
class VectorHeads:
    """`layers`: kind → the layer on the last states of the tokens. `without_weight`: int64 [tokens], ids that a sparse
    vector never has.
    """

    layers: dict[Vectors, torch.nn.Module]
    without_weight: Array


class CombinedModel(EncoderModel):
    """Its rows are dicts of vectors by kind where a batch asks for kinds, else its embeddings."""

    def __init__(self, *arguments: Any, heads: VectorHeads) -> None:
        """`arguments`: of EncoderModel."""
        super().__init__(*arguments)
        self._heads = heads

    def close(self) -> None:
        """As BatchModel.close."""
        super().close()
        self._heads = VectorHeads({}, self._heads.without_weight)

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        if batch.kinds is None:
            return super()._run(model, batch)
        with pinned_arrays(self._pool) as empty, torch.inference_mode():
            tokens = self._padded(batch, empty)
            encoded = self._encoded(model, tokens)
            dense = self._embedded(tokens, *encoded)
            states = encoded[0].last_hidden_state
            weights = self._computed_by("sparse", states, batch.kinds)
            # The state of the first token is the embedding's own.
            vectors = self._computed_by("multi", states[:, 1:], batch.kinds)
        rows = np.empty(batch.rows, object)
        for row, (ids, kinds) in enumerate(zip(batch.token_ids, batch.kinds, strict=True)):
            found: dict[Vectors, Any] = {}
            if "dense" in kinds:
                found["dense"] = dense[row]
            if "sparse" in kinds:
                found["sparse"] = _largest_weights(np.asarray(ids), weights[row][: len(ids), 0], self._heads)
            if "multi" in kinds:
                # Not a view: it would keep the padding of the batch in memory.
                found["multi"] = vectors[row][: max(0, len(ids) - 1)].copy()
            rows[row] = found
        return rows

    def _computed_by(self, kind: Vectors, states: torch.Tensor, kinds: list[tuple[Vectors, ...]]) -> dict[int, Array]:
        """Return float32 [longest, outputs] of the texts that ask for a kind, by their rows."""
        at = [row for row, each in enumerate(kinds) if kind in each]
        if not at:
            return {}
        chosen = states if len(at) == len(states) else states[torch.tensor(at, device=states.device)]
        computed: Array = self._heads.layers[kind](chosen).float().cpu().numpy()
        return dict(zip(at, computed, strict=True))


def _largest_weights(ids: Array, weights: Array, heads: VectorHeads) -> tuple[Array, Array]:
    """Return the token ids of a text, ascending, and the largest weight of each, where it is above 0."""
    is_kept = (weights > 0) & ~np.isin(ids, heads.without_weight)
    indices, inverse = np.unique(ids[is_kept], return_inverse=True)
    values = np.zeros(len(indices), np.float32)
    np.maximum.at(values, inverse, weights[is_kept])
    return indices.astype(np.int32), values


def with_vector_heads(
    model: torch.nn.Module, spec: ModelSpec, folder: Path, tokenizer: TextTokenizer, allow_pickled: bool
) -> tuple[ModelSpec, Callable[..., EncoderModel]]:
    """Return the spec of an encoder, which may have heads of other vectors, and what makes an instance of it.

    Raises InvalidModel.
    """
    heads = _load_heads(folder, model, tokenizer, allow_pickled)
    if heads is None:
        return spec, EncoderModel
    assert spec.text is not None
    memory_bytes = spec.memory_bytes + sum(map(held_bytes, heads.layers.values()))
    text = replace(spec.text, other_vectors=tuple(heads.layers))
    return replace(spec, memory_bytes=memory_bytes, text=text), partial(CombinedModel, heads=heads)


def _load_heads(
    folder: Path, model: torch.nn.Module, tokenizer: TextTokenizer, allow_pickled: bool
) -> VectorHeads | None:
    """Read the heads of an encoder; None where its folder has none, or only pickles that are not allowed."""
    files = {kind: folder / name for kind, name in HEADS.items() if (folder / name).is_file()}
    if not files:
        return None
    if not allow_pickled:
        log.warning(
            "only dense vectors are served",
            reason=f"{' and '.join(file.name for file in files.values())} are pickles",
            remedy="allow_pickled_weights = true reads them",
        )
        return None
    like = next(model.parameters())
    hidden_size = int(getattr(model.config, "hidden_size", -1))
    layers = {kind: _linear(file, 1 if kind == "sparse" else None, hidden_size, like) for kind, file in files.items()}
    return VectorHeads(layers, _ids_without_weight(folder, tokenizer))


def _linear(file: Path, outputs: int | None, inputs: int, like: torch.Tensor) -> torch.nn.Module:
    """Return the layer of a file. `outputs`: None for any number. `like`: of the dtype and device of the layer."""
    tensors = read_pickled_tensors(file)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    shape = () if weight is None else tuple(weight.shape)
    is_known = len(shape) == 2 and shape[1] == inputs and 0 < shape[0] <= _LARGEST_VECTOR
    if weight is None or not is_known or (outputs is not None and shape[0] != outputs):
        raise InvalidModel(
            f"{file}: weight: expected [{outputs or 'size'}, {inputs}], the size of the states, got {list(shape)}"
        )
    if bias is not None and tuple(bias.shape) != shape[:1]:
        raise InvalidModel(f"{file}: bias: expected [{shape[0]}], got {list(bias.shape)}")
    layer = torch.nn.Linear(inputs, shape[0], bias=bias is not None, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.eval()


def _ids_without_weight(folder: Path, tokenizer: TextTokenizer) -> Array:
    """Return the ids of the special tokens that the files name; where they name none, of those around an empty text."""
    named = read_json(folder / "tokenizer_config.json") | read_json(folder / "special_tokens_map.json")
    ids = set[int]()
    for key in _WITHOUT_WEIGHT:
        token = named.get(key)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and (token_id := tokenizer.id_of(content)) is not None:
            ids.add(token_id)
    return np.array(sorted(ids or tokenizer.tokenize([""], truncate=True, prompt="")[0]), np.int64)
