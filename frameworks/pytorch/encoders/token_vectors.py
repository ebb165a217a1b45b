"""An encoder of late interaction (ColBERT): texts in, a vector for each of their tokens out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_settings
from frameworks.pytorch.device.pinned import pinned_arrays
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.quantize import held_bytes
from frameworks.pytorch.weights import WeightFiles
from frameworks.text.late_interaction import LateInteraction
from frameworks.types import Array, ModelSpec, TensorType, TokenBatch, ValueSpec

_OWN_WEIGHT = "linear.weight"
_IDENTITY = ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Identity")
_LARGEST_VECTOR = 65_536


class TokenVectorModel(EncoderModel):
    """Its rows are object arrays [texts] of float32 [tokens, size], before they are normalised."""

    def __init__(self, *arguments: Any, projection: torch.nn.Module) -> None:
        """`arguments`: of EncoderModel. `projection`: of the states of the tokens."""
        super().__init__(*arguments)
        self._projection = projection

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        with pinned_arrays(self._pool) as empty:
            tokens = self._padded(batch, empty)
            if batch.attended is not None:
                tokens = replace(tokens, all_attended=False)
                for row, attended in enumerate(batch.attended):
                    tokens.attention_mask[row, attended:] = 0
            vectors = self._computed(model, tokens)
        rows = np.empty(batch.rows, object)
        for row, ids in enumerate(batch.token_ids):
            # Not a view: it would keep the padding of the batch in memory.
            rows[row] = vectors[row, : len(ids)].copy()
        return rows

    def _trial_row(self, rows: Array) -> Array:
        return np.stack([vectors.mean(axis=0) for vectors in rows])

    def _rows(self, output: Any, mask: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self._projection(output.last_hidden_state)
        return vectors

    def close(self) -> None:
        super().close()
        self._projection = torch.nn.Identity()


def with_token_vectors(
    model: torch.nn.Module, spec: ModelSpec, late: LateInteraction, weights: WeightFiles
) -> tuple[ModelSpec, Callable[..., EncoderModel]]:
    """Return the spec of a model of late interaction, and what makes an instance of it, as EncoderModel.

    `spec`: of its dense vectors. Raises InvalidModel.
    """
    assert spec.text is not None
    hidden_size = int(getattr(model.config, "hidden_size", 0))
    projection, size = load_projection(late, weights, hidden_size, next(model.parameters()))
    spec = replace(
        spec,
        outputs=(ValueSpec("multi_embeddings", TensorType("float32", (-1, -1, size))),),
        memory_bytes=spec.memory_bytes + held_bytes(projection),
        text=replace(spec.text, vectors="multi", embedding_size=size, shorter_sizes=(), pooling="none"),
    )
    return spec, partial(TokenVectorModel, projection=projection)


def load_projection(
    late: LateInteraction, weights: WeightFiles, hidden_size: int, like: torch.Tensor
) -> tuple[torch.nn.Module, int]:
    """Return the module that projects the states of tokens, and the size of a vector. `like`: of its dtype and device.

    Raises InvalidModel.
    """
    if late.projections is None:
        files = [file for file in weights.files if _OWN_WEIGHT in _names(file)]
        if not files:
            raise InvalidModel(f"{weights.files[0]}: {_OWN_WEIGHT}: expected the projection of the tokens, got none")
        layers = [_linear(files[0], _OWN_WEIGHT, None, hidden_size)]
    else:
        layers = []
        for folder in late.projections:
            layers.append(_dense(folder, layers[-1].out_features if layers else hidden_size))
    size = layers[-1].out_features if layers else hidden_size
    return torch.nn.Sequential(*layers).to(device=like.device, dtype=like.dtype).eval().requires_grad_(False), size


def _dense(folder: Path, size: int) -> torch.nn.Linear:
    """Load a Dense module of sentence-transformers or PyLate."""
    file = folder / "config.json"
    config = read_json(file)
    refuse_settings(file, config, {"activation_function": _IDENTITY, "use_residual": (False,)})
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise InvalidModel(f"{weights}: absent; save the module with its weights as safetensors")
    return _linear(weights, _OWN_WEIGHT, "linear.bias" if config.get("bias", True) else None, size)


def _linear(file: Path, weight: str, bias: str | None, size: int) -> torch.nn.Linear:
    names = _names(file)
    missing = [name for name in (weight, bias) if name is not None and name not in names]
    if missing:
        raise InvalidModel(f"{file}: {missing[0]}: expected a weight of the projection, got none")
    with safe_open(file, framework="pt") as tensors:
        shape = tensors.get_slice(weight).get_shape()
        if len(shape) != 2 or shape[1] != size or not 0 < shape[0] <= _LARGEST_VECTOR:
            raise InvalidModel(f"{file}: {weight}: expected [size, {size}], got {shape}")
        layer = torch.nn.Linear(shape[1], shape[0], bias=bias is not None)
        layer.weight.data = tensors.get_tensor(weight)
        if bias is not None:
            layer.bias.data = tensors.get_tensor(bias)
    return layer


def _names(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as tensors:
        return set(tensors.keys())
