"""Linear layers whose weights are divided over ranks.

torch.distributed.tensor's styles of a plan apply to torch.nn.Linear. The layers of the decoders here are packed and
fused, and have no such modules, so two layers around them do the same operations.
"""

from typing import Any

import torch

from frameworks.pytorch.generation.decoders.llama import LlamaDecoder
from frameworks.pytorch.generation.tensor_parallel.rank_group import RankGroup
from frameworks.pytorch.generation.weights.linear import Linear, UnfusedLinear


class SummedLinear(UnfusedLinear):
    """A layer of which each rank has a part of the inputs (rowwise): its result is the sum over the ranks."""

    def __init__(self, linear: Linear, group: RankGroup) -> None:
        self.linear = linear
        self._group = group

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        result = self.linear(rows)
        self._group.all_reduce(result)
        return result


class GatheredLinear(UnfusedLinear):
    """A layer of which each rank has a part of the outputs (colwise), with padding: all ranks get all of them."""

    def __init__(self, linear: Linear, group: RankGroup, outputs: int) -> None:
        self.linear = linear
        self._group = group
        self._outputs = outputs

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return _gathered(self.linear(rows), self._group, self._outputs)


def join_ranks(decoder: LlamaDecoder, group: RankGroup, vocabulary_size: int) -> None:
    """Let a decoder with the weights of one rank compute together with the other ranks."""
    for layer in decoder.layers:
        layer.output = SummedLinear(layer.output, group)
        layer.down = SummedLinear(layer.down, group)
    decoder.head = GatheredLinear(decoder.head, group, vocabulary_size)


def join_model(model: Any, group: RankGroup, vocabulary_size: int) -> None:
    """As `join_ranks`, of transformers' model, which is the reference of the decoder."""

    def add(_: Any, __: Any, result: torch.Tensor) -> torch.Tensor:
        result = result.contiguous()
        group.all_reduce(result)
        return result

    def gather(_: Any, __: Any, result: torch.Tensor) -> torch.Tensor:
        return _gathered(result, group, vocabulary_size)

    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(add)
        layer.mlp.down_proj.register_forward_hook(add)
    model.lm_head.register_forward_hook(gather)


def _gathered(part: torch.Tensor, group: RankGroup, outputs: int) -> torch.Tensor:
    return torch.cat(group.all_gather(part), -1)[..., :outputs].contiguous()
