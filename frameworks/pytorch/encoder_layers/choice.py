"""Choose whether the layers of an encoder are compiled."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch

from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import Kernels
from frameworks.pytorch.compiled.matmul.float_linears import FormatName, compiles
from frameworks.pytorch.compiling.background import CompilationFailed, compile_parts
from frameworks.pytorch.compiling.parts import ENCODER
from frameworks.pytorch.cpu_layers.packed import pack_layers
from frameworks.pytorch.encoder_layers.forms import LayerForm, NotCompiled, stacks_of
from frameworks.pytorch.encoder_layers.layers import CompiledLayers, formats_of
from frameworks.pytorch.encoder_layers.packed_linears import INT8_FORMATS
from frameworks.pytorch.kernels import shortest_seconds_beside_steps

_LENGTHS = (37, 5, 1)
"""Tokens of the texts of the trial."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Relative to the largest element of the states."""
_INT8_TOLERANCE = 0.1
_TIMED_ROWS = (16, 128)
_MAX_TIME = 0.95
_RIVAL = "torch"
_MAX_TIMES: dict[FormatName, float] = {"float32_bfloat16x3": 0.9}
"""Shares of the time of other formats, for those whose weights take more memory."""


def code_of_layers(model: torch.nn.Module, wanted: Kernels, name: str) -> "Future[None] | None":
    """Have the code of a model's layers compiled, beside its load; None where it is in the cache, or not wanted.

    `name`: of the model, for the progress. Only "auto" does not wait for the code.
    """
    parts = set()
    for layers, form in stacks_of(model) if wanted == "auto" else ():
        try:
            parts.update(formats_of(layers, form))
        except NotCompiled:
            continue
    return compile_parts({ENCODER, *parts}, name) if parts else None


def compile_layers(model: torch.nn.Module, wanted: Kernels) -> list[CompiledLayers]:
    """Let compiled code compute the layers of the encoders in a model, where that is wanted: by "auto" where it is
    faster on this CPU. Return those that are compiled.

    `model`: in eval mode, with plain weights. Raises InvalidModel where "compiled" is wanted, and not possible.
    """
    if wanted not in ("auto", "compiled"):
        return []
    reason = f"the layers of {type(model).__name__} are of no known form"
    found = []
    for layers, form in stacks_of(model):
        try:
            first = [CompiledLayers(layers[:1], form, weights=each) for each in formats_of(layers, form)]
            for compiled in first:
                _check(compiled, layers[0])
            fastest = _fastest(first, _rival_of(layers[0]) if wanted == "auto" else None)
            if fastest is None:
                continue
            found.append(CompiledLayers(layers, form, model, fastest.format_name))
            found[-1].install(layers)
        except NotCompiled as error:
            reason = str(error)
    if wanted == "compiled" and not found:
        raise InvalidModel(f'kernels: expected another value than "compiled", as {reason}; remove it')
    return found


def int8_layers(
    model: torch.nn.Module, rival: Callable[[torch.nn.Module], torch.nn.Module], name: str
) -> dict[CompiledLayers, list[torch.nn.Module]]:
    """Return the layers of the encoders in a model with int8 weights, where compiled code is faster than the layers
    that `rival` makes of those of the model, which it does not change. `name`: of the model, for the progress.

    Waits until the code is compiled. The layers are not installed yet.
    """
    names = [each for each in INT8_FORMATS if compiles(each)]
    found = {}
    for layers, form in stacks_of(model) if names else ():
        try:
            formats_of(layers, form)
            code = compile_parts({ENCODER, *names}, name)
            if code is not None:
                code.result()
            first = [CompiledLayers(layers[:1], form, weights=each) for each in names]
            for compiled in first:
                _check(compiled, layers[0], _INT8_TOLERANCE)
            fastest = _fastest(first, rival(deepcopy(layers[0])))
            if fastest is not None:
                found[CompiledLayers(layers, form, weights=fastest.format_name)] = layers
        except (NotCompiled, CompilationFailed):
            continue
    return found


def _check(compiled: CompiledLayers, layer: torch.nn.Module, tolerance: float | None = None) -> None:
    """Compare the states of some texts. `tolerance`: None for that of the dtype. Raises NotCompiled."""
    generator = torch.Generator().manual_seed(0)
    starts = [0, *torch.tensor(_LENGTHS).cumsum(0).tolist()]
    rows, dtype = torch.randn(1, starts[-1], compiled.hidden_size, generator=generator), compiled.dtype
    angles = torch.rand(1, starts[-1], compiled.head_size // 2, generator=generator).repeat(1, 1, 2)
    states, rope = rows.to(dtype), [(angles.cos(), angles.sin())] if _takes_angles(layer) else [None]
    with torch.inference_mode():
        found = compiled(states, starts, rope)
    for start, end in itertools.pairwise(starts):
        text = states[:, start:end]
        expected = _run(layer, text, _positions(text, rope[0], slice(start, end), compiled.form), compiled.form)
        error = float((found[:, start:end] - expected).abs().max() / expected.abs().max())
        if not error <= (tolerance or _TOLERANCE[dtype]):
            raise NotCompiled(f"the states of a compiled layer differ by {error:.2g} of their largest element")


def _rival_of(layer: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a layer with torch's kernels, of which the faster ones are used."""
    rival = deepcopy(layer)
    pack_layers(rival, "auto")
    return rival


def _fastest(compiled: Sequence[CompiledLayers], rival: torch.nn.Module | None) -> CompiledLayers | None:
    """Return those that take the least time, in all _TIMED_ROWS; None where the rival is as fast."""
    if rival is None and len(compiled) == 1:
        return compiled[0]
    seconds: Counter[str] = Counter()
    form, takes_angles = compiled[0].form, rival is not None and _takes_angles(rival)
    for rows in _TIMED_ROWS:
        states = torch.ones(1, rows, compiled[0].hidden_size, dtype=compiled[0].dtype)
        angles = torch.ones(1, rows, compiled[0].head_size)
        rope = (angles, angles) if takes_angles else None
        runs: dict[str, Callable[[], Any]] = {
            each.format_name: partial(each, states, [0, rows], [rope]) for each in compiled
        }
        if rival is not None:
            runs[_RIVAL] = partial(_run, rival, states, _positions(states, rope, slice(0, rows), form), form)
        seconds.update(shortest_seconds_beside_steps(runs))
    fastest = min(compiled, key=lambda each: seconds[each.format_name] / _MAX_TIMES.get(each.format_name, 1.0))
    is_chosen = rival is None or seconds[fastest.format_name] < _MAX_TIME * seconds[_RIVAL]
    return fastest if is_chosen else None


def _takes_angles(layer: torch.nn.Module) -> bool:
    return "position_embeddings" in signature(layer.forward).parameters


def _positions(states: torch.Tensor, angles: Any, rows: slice, form: LayerForm) -> dict[str, Any]:
    """Return what a layer gets of the positions in a text, by the name of the argument."""
    positions: dict[str, Any] = {}
    if angles is not None:
        positions["position_embeddings"] = tuple(each[:, rows].to(states.dtype) for each in angles)
    if form.bias is not None:
        positions["position_bias"] = form.bias.of_text(states.shape[1])
    return positions


def _run(layer: torch.nn.Module, states: torch.Tensor, positions: dict[str, Any], form: LayerForm) -> torch.Tensor:
    """Return the states of a text after a layer without a mask. Raises NotCompiled where that does not run."""
    try:
        with torch.inference_mode():
            found = layer(states, attention_mask=None, **positions)
    except Exception as error:
        raise NotCompiled(f"its layers need more than states: {error}") from error
    if form.returns_tuple and isinstance(found, tuple):
        found = found[0]
    if not isinstance(found, torch.Tensor):
        raise NotCompiled("its layers return more than states")
    return found
