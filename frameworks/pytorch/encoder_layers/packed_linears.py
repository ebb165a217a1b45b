"""Pack the weights of a layer's Linears for compiled GEMMs, and make modules of them."""

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from frameworks.pytorch.compiled.matmul.float_linears import FormatName, make_float
from frameworks.pytorch.cpu_layers.compiled import CompiledLayer
from frameworks.pytorch.encoder_layers.forms import LayerForm, NotCompiled

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

INT8_FORMATS: tuple[FormatName, ...] = ("int8_weight_only", "int8_groups")


def pack_layer(layer: torch.nn.Module, form: LayerForm, format_name: FormatName) -> "tuple[CompiledLinear | None, ...]":
    """Return the Linears of a layer in the order of the arguments' GEMMs; None for one that it does not have. Raises
    NotCompiled.
    """
    up = [attrgetter(each)(layer) for each in form.up]
    weights, biases = [each.weight for each in up], [each.bias for each in up]
    if form.is_gated and len(up) == 1:
        weights = list(weights[0].chunk(2))
        biases = [None, None] if biases[0] is None else list(biases[0].chunk(2))
    ups = [_packed([weight], [bias], format_name) for weight, bias in zip(weights, biases, strict=True)]
    query_key_value = [attrgetter(each)(layer) for each in form.query_key_value]
    output, down = (
        _packed(*_scaled(attrgetter(path)(layer), attrgetter(scale)(layer) if scale else None), format_name)
        for path, scale in zip((form.output, form.down), form.scales, strict=True)
    )
    return (
        _packed([each.weight for each in query_key_value], [each.bias for each in query_key_value], format_name),
        output,
        ups[0],
        ups[1] if len(ups) > 1 else None,
        down,
    )


def modules_of(
    layer: torch.nn.Module, form: LayerForm, linears: "tuple[CompiledLinear | None, ...]"
) -> dict[tuple[torch.nn.Module, str], torch.nn.Module]:
    """Return the modules that take the place of a layer's own, by their parent and name: Linears with the packed
    weights, and nothing for a scale that is in them.
    """
    query_key_value, output, *ups, down = linears
    replacements: tuple[tuple[tuple[str, ...], list[Any]], ...] = (
        (form.query_key_value, _split(query_key_value, len(form.query_key_value))),
        ((form.output,), [output]),
        (form.up, [each for each in ups if each is not None]),
        ((form.down,), [down]),
    )
    found: dict[tuple[torch.nn.Module, str], torch.nn.Module] = {}
    for paths, own in replacements:
        of_path = len(own) // len(paths)
        for index, path in enumerate(paths):
            found[_location(layer, path)] = CompiledLayer(own[index * of_path : (index + 1) * of_path])
    for path in filter(None, form.scales):
        found[_location(layer, path.rpartition(".")[0])] = torch.nn.Identity()
    return found


def _location(layer: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    parent, _, name = path.rpartition(".")
    return attrgetter(parent)(layer) if parent else layer, name


def _scaled(linear: Any, scale: torch.Tensor | None) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return weight and bias of a Linear whose outputs are multiplied by a scale [outputs]."""
    weight, bias = linear.weight.detach(), linear.bias
    if scale is None:
        return [weight], [bias]
    factors = scale.detach().float()
    scaled_bias = None if bias is None else (bias.detach().float() * factors).to(bias.dtype)
    return [(weight.float() * factors[:, None]).to(weight.dtype)], [scaled_bias]


def _packed(
    weights: list[torch.Tensor], biases: list[torch.Tensor | None], format_name: FormatName
) -> "CompiledLinear":
    bias = None
    if any(each is not None for each in biases):
        pairs = zip(weights, biases, strict=True)
        bias = torch.cat([each.new_zeros(len(each)) if own is None else own.detach() for each, own in pairs])
    joined = torch.cat([each.detach() for each in weights])
    if format_name not in INT8_FORMATS:
        return make_float(format_name, joined, bias)
    # Encoders of floats need none of it.
    from frameworks.pytorch.generation.weights.compiled_linears import GROUP, make_int8_groups

    if joined.shape[1] % GROUP:
        raise NotCompiled(f"a layer has {joined.shape[1]} inputs, no multiple of {GROUP}")
    return make_int8_groups(joined, bias, format_name)


def _split(linear: Any, count: int) -> "list[CompiledLinear]":
    """Return layers of as many outputs each, which share the packed weights of one."""
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    outputs, num_bytes = linear.outputs // count, len(linear.weights) // count
    found = []
    for index in range(count):
        bias = None if linear.bias is None else linear.bias[index * outputs : (index + 1) * outputs]
        weights = linear.weights[index * num_bytes : (index + 1) * num_bytes]
        found.append(CompiledLinear(weights, (outputs, linear.inputs), bias, linear.format))
    return found
