"""Fold the normalization behind a convolution into its weights: one pass less over each image of a backbone.

A batch normalization in eval mode multiplies each channel and adds to it, as the weights and the bias of the
convolution before it do.
"""

from copy import copy
from typing import Any

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights

_FROZEN = "FrozenBatchNorm2d"
"""The end of the names of transformers' classes for normalizations of constants. Their epsilon is 1e-5."""
_EPSILON = 1e-5
_TOLERANCE = 1e-4
_SIDE = 24


def fold_normalizations(model: torch.nn.Module) -> list[torch.nn.Conv2d]:
    """Fold the normalizations of a float32 model in eval mode on a CPU; return the convolutions that were replaced.

    transformers' modules name the parts `convolution` and `normalization`. A module that does not compute them one
    after the other stays as it is: its results before and after are compared.
    """
    folded = (_fold(each) for each in [*model.modules()])
    return [each for each in folded if each is not None]


def _fold(module: Any) -> torch.nn.Conv2d | None:
    convolution, normalization = (getattr(module, name, None) for name in ("convolution", "normalization"))
    if type(convolution) is not torch.nn.Conv2d or not _is_constant(normalization) or module.training:
        return None
    if convolution.weight.dtype != torch.float32 or convolution.weight.device.type != "cpu":
        return None
    sides = [max(_SIDE, size * step) for size, step in zip(convolution.kernel_size, convolution.dilation, strict=True)]
    generator = torch.Generator().manual_seed(0)
    example = torch.randn(1, convolution.in_channels, *sides, generator=generator)
    try:
        with torch.inference_mode():
            before = module(example)
            module.convolution, module.normalization = _folded(convolution, normalization), torch.nn.Identity()
            is_equal = torch.allclose(module(example), before, rtol=_TOLERANCE, atol=_TOLERANCE)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        is_equal = False
    if is_equal:
        return convolution
    module.convolution, module.normalization = convolution, normalization
    return None


def _is_constant(normalization: object) -> bool:
    """Whether a normalization has statistics of its own: no sums over the batch."""
    if type(normalization) is torch.nn.BatchNorm2d:
        return normalization.running_mean is not None and normalization.running_var is not None
    return type(normalization).__name__.endswith(_FROZEN)


def _folded(convolution: torch.nn.Conv2d, normalization: Any) -> torch.nn.Conv2d:
    """Return the convolution with the normalization in its weights, which are computed in float64."""
    own = [getattr(normalization, name) for name in ("running_mean", "running_var", "weight", "bias")]
    mean, variance, scale, shift = (None if each is None else each.detach().double() for each in own)
    bias = None if convolution.bias is None else convolution.bias.detach().double()
    epsilon = getattr(normalization, "eps", _EPSILON)
    fused: Any = fuse_conv_bn_weights
    weights = fused(convolution.weight.detach().double(), bias, mean, variance, epsilon, scale, shift)
    made = copy(convolution)
    made._parameters = {
        name: torch.nn.Parameter(each.detach().float(), requires_grad=False)
        for name, each in zip(("weight", "bias"), weights, strict=True)
    }
    return made
