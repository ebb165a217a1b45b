"""The compiled layers of one model.

The layers of transformers' model stay in it. Each computes itself, as transformers may keep the states between them;
in a row of tokens the last one computes all. A run with a mask is torch's, with the same packed weights.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from operator import attrgetter
from typing import Any

import torch

from frameworks.pytorch.compiled.matmul.float_linears import FormatName, compiles
from frameworks.pytorch.cpu_layers.packed import FilesOfWeights
from frameworks.pytorch.encoder_layers.embeddings import Embeddings
from frameworks.pytorch.encoder_layers.forms import LayerForm, NotCompiled, epsilon_of, operation_of
from frameworks.pytorch.encoder_layers.packed_linears import modules_of, pack_layer
from frameworks.pytorch.encoder_layers.runner import Layer, Plan, Runner, Tokens
from frameworks.pytorch.encoder_layers.token_rows import row_of_thread
from frameworks.types import Array

_UNKNOWN = object()
"""Position embeddings of another kind."""
_FORMATS: dict[torch.dtype, tuple[FormatName, ...]] = {
    torch.float32: ("float32", "float32_bfloat16x3"),
    torch.bfloat16: ("bfloat16",),
}
"""By dtype of the weights: the formats that keep their precision."""
_ROUNDING_FORMATS: tuple[FormatName, ...] = ("bfloat16", "int8_weight_only")
"""Those whose activations are bfloat16 with AMX."""


def formats_of(layers: Sequence[torch.nn.Module], form: LayerForm) -> list[FormatName]:
    """Return the formats of this CPU that keep the precision of the layers' weights. Raises NotCompiled."""
    weights = [attrgetter(path)(layer).weight for layer in layers for path in (*form.query_key_value, form.output)]
    dtype, device = weights[0].dtype, weights[0].device
    names = [each for each in _FORMATS.get(dtype, ()) if compiles(each)]
    if not names or device.type != "cpu" or {each.dtype for each in weights} != {dtype}:
        raise NotCompiled(f"there are no kernels for {str(dtype).removeprefix('torch.')} on this device")
    if len({each.shape for each in weights[: len(form.query_key_value)]}) > 1:
        raise NotCompiled("its keys have fewer heads than its queries")
    return names


class _Thread(threading.local):
    """`angles`: cosines and sines of each layer of a row of tokens so far, [1, rows, head size]; None without RoPE."""

    def __init__(self) -> None:
        self.angles: list[Any] = []


class CompiledLayers:
    """The layers of one model, whose weights they pack. Any number of threads may compute."""

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        form: LayerForm,
        model: torch.nn.Module | None = None,
        weights: FormatName | None = None,
    ) -> None:
        """`model`: that of the layers, whose Linears get the packed weights one by one; None: it stays as it is.
        `weights`: their format; None: the first one that keeps their precision.

        Raises NotCompiled.
        """
        attention = attrgetter(form.query_key_value[0].rpartition(".")[0])(layers[0])
        self.format_name = weights or formats_of(layers, form)[0]
        weight = attrgetter(form.output)(layers[0]).weight
        if getattr(attention, "is_causal", False) or getattr(attention, "is_decoder", False):
            raise NotCompiled("its tokens do not see later ones")
        self.form, self.dtype = form, weight.dtype
        self.hidden_size, inputs = weight.shape
        self.head_size = int(getattr(attention, "attention_head_size", 0) or getattr(attention, "head_dim", 0))
        if not self.head_size or inputs % self.head_size:
            raise NotCompiled("its attention tells no size of a head")
        _check_sizes(form, inputs)
        self.is_used = True
        """Whether the layers are computed by compiled code; else by torch, with the Linears that they have."""
        scale = float(getattr(attention, "scaling", 0) or self.head_size**-0.5)
        operation, epsilon = operation_of(attrgetter(form.activation)(layers[0])), epsilon_of(layers, form)
        self._kept: list[torch.Tensor] = []
        files = None if model is None else FilesOfWeights(model)
        self._plan = Plan(
            [self._pack(layer, files) for layer in layers],
            (self.hidden_size, inputs // self.head_size, self.head_size),
            epsilon,
            scale,
            operation,
            form.bias.of_distances if form.bias is not None else None,
            self.format_name in _ROUNDING_FORMATS,
        )
        self._thread = _Thread()
        self._runners: list[Runner] = []

    @property
    def largest_window(self) -> int:
        """Tokens that a token sees on a side, with itself, in any layer; 0 where it sees all."""
        return max(each.window + 1 if each.window else 0 for each in self._plan.layers)

    def install(self, layers: Sequence[torch.nn.Module]) -> None:
        """Compute these layers of the model from now on. Runs with a mask are torch's."""
        own: Sequence[Any] = layers
        for index, layer in enumerate(own):
            layer.compiled, layer.compiled_index = self, index
            layer.__class__ = _compiled_class(type(layer))  # type: ignore[arg-type]
        if self.form.bias is not None:
            self.form.bias.install()

    def __call__(
        self, states: torch.Tensor, starts: list[int], angles: Sequence[Any] = (), only: int | None = None
    ) -> torch.Tensor:
        """Return the states after the last layer, in the shape and the dtype of `states`, [..., hidden size].

        `starts`: the first row of each text, and the end of the last. `angles`: of each layer, transformers' position
        embeddings, [1, rows, head size] each; empty without. `only`: the index of a layer that is computed alone.
        """
        rows = states.reshape(-1, self.hidden_size).float()
        out = self._run(rows, starts, angles, None if only is None else range(only, only + 1))
        return out.to(states.dtype).view(states.shape)

    def of_tokens(
        self, embeddings: Embeddings, rows: Array, starts: list[int], layers: range | None = None
    ) -> torch.Tensor:
        """Return the states of tokens, float32 [tokens, hidden size], after some layers; None: after all.

        `rows`: of the tables of the embeddings, int64 [3, tokens].
        """
        return self._run(Tokens(embeddings, rows), starts, (), layers)

    def _run(
        self, given: torch.Tensor | Tokens, starts: list[int], angles: Sequence[Any], layers: range | None
    ) -> torch.Tensor:
        out = torch.empty(starts[-1], self.hidden_size)
        try:
            runner = self._runners.pop()
        except IndexError:
            runner = Runner(self._plan)
        try:
            runner.compute(given, out, starts, angles, layers)
        finally:
            if runner.is_small:
                self._runners.append(runner)
        return out

    def compute(
        self, index: int, original: Callable[..., Any], states: torch.Tensor, *others: Any, **named: Any
    ) -> Any:
        """Compute a layer of the model, whose own function is `original`: alone, as its caller may keep the states
        between layers; those of a row of tokens together, in the last one.
        """
        texts, tokens = states.shape[:2]
        row = row_of_thread()
        angles = _angles_of(named.get("position_embeddings"), texts, (tokens, self.head_size))
        if not self.is_used or angles is _UNKNOWN or not _is_plain(others, named, row is not None):
            if row is not None:
                raise RuntimeError("the layers need more than their states")  # torch's way would mix the texts
            return original(states, *others, **named)
        if row is None:
            found = self(states, list(range(0, texts * tokens + 1, max(1, tokens))), [angles], index)
            return (found,) if self.form.returns_tuple else found
        if index == 0:
            self._thread.angles = []
        self._thread.angles.append(angles)
        if index == len(self._plan.layers) - 1:
            given, states = states, self(states, row.starts.tolist(), self._thread.angles)
            if row.noted is not None and all(each is None for each in self._thread.angles):
                row.noted.append((given, states))
        return (states,) if self.form.returns_tuple else states

    def _pack(self, layer: torch.nn.Module, files: FilesOfWeights | None) -> Layer:
        form = self.form
        linears = pack_layer(layer, form, self.format_name)
        attention = attrgetter(form.query_key_value[0].rpartition(".")[0])(layer)
        window = getattr(attention, "sliding_window", None) or 1
        norms = [address for path in form.norms for address in self._norm(layer, path)]
        found = Layer(linears, tuple(norms), window - 1)
        if files is not None:
            for (parent, name), module in modules_of(layer, form, linears).items():
                before = getattr(parent, name)
                setattr(parent, name, module)
                if isinstance(before, torch.nn.Linear):
                    files.give_back(before.weight)
        return found

    def _norm(self, layer: torch.nn.Module, path: str) -> tuple[int, int]:
        norm = attrgetter(path)(layer) if path else None
        if norm is None or isinstance(norm, torch.nn.Identity):
            return 0, 0
        addresses = []
        for each in (norm.weight, norm.bias):
            if each is not None:
                self._kept.append(each.detach().float().contiguous())
            addresses.append(0 if each is None else self._kept[-1].data_ptr())
        return addresses[0], addresses[1]

    def modules(self, layers: Sequence[torch.nn.Module]) -> dict[tuple[torch.nn.Module, str], torch.nn.Module]:
        """Return the modules with packed weights that take the place of the layers' own, by their parent and name."""
        found: dict[tuple[torch.nn.Module, str], torch.nn.Module] = {}
        for layer, packed in zip(layers, self._plan.layers, strict=True):
            found |= modules_of(layer, self.form, packed.linears)
        return found


def compiled_in(model: torch.nn.Module) -> list[CompiledLayers]:
    """Return the compiled layers that have been installed in a model."""
    found: dict[int, CompiledLayers] = {}
    for module in model.modules():
        compiled = getattr(module, "compiled", None)
        if isinstance(compiled, CompiledLayers):
            found[id(compiled)] = compiled
    return list(found.values())


@cache
def _compiled_class(kind: type) -> type:
    """Return a class of layers that compiled code computes. It has the name of its base: transformers looks by it."""
    original: Any = kind.forward  # type: ignore[attr-defined]

    @wraps(original)
    def forward(self: Any, states: torch.Tensor, *others: Any, **named: Any) -> Any:
        return self.compiled.compute(self.compiled_index, partial(original, self), states, *others, **named)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names | {"forward": forward})


def _check_sizes(form: LayerForm, inputs: int) -> None:
    """Raise NotCompiled where query, key and value cannot share packed weights. `inputs`: of the layer after them."""
    from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK

    if len(form.query_key_value) > 1 and inputs % BLOCK:
        raise NotCompiled(f"its queries have {inputs} elements, no multiple of {BLOCK}")


def _angles_of(given: Any, texts: int, shape: tuple[int, int]) -> Any:
    """Return cosines and sines of all rows, [1, rows, head size]; None without RoPE. `shape`: tokens, head size."""
    if given is None:
        return None
    if len(given) != 2 or any(each.ndim != 3 or each.shape[1:] != shape for each in given):
        return _UNKNOWN
    return [each.expand(texts, -1, -1).reshape(1, -1, shape[1]) for each in given]


def _is_plain(others: Sequence[Any], named: dict[str, Any], is_row: bool) -> bool:
    """Return whether a layer with these arguments computes nothing else than without. `is_row`: its tokens are those of
    several texts, whatever its mask says.
    """
    mask, *further = others or (named.get("attention_mask"),)
    # The states have the positions already.
    read = ("attention_mask", "position_embeddings", "position_ids")
    changing = [*further, *(value for name, value in named.items() if name not in read)]
    return (is_row or mask is None) and all(value is None or value is False for value in changing)
