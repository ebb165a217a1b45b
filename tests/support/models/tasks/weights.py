"""Draw the weights of a tiny model, so that its answers differ between inputs."""

from typing import Any

import torch
from torch import nn


def draw(model: Any, seed: int = 5) -> None:
    """Draw the weights of products, convolutions and embeddings; those of a usual size give all inputs one answer."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if (
                not isinstance(weight, nn.Parameter)
                or not weight.requires_grad
                or weight.dim() < 2
                or not weight.numel()
            ):
                continue
            if isinstance(module, nn.Embedding):
                weight.normal_(std=0.5)
                if module.padding_idx is not None:
                    weight[module.padding_idx].zero_()
            elif type(module).__module__.startswith("torch.nn.modules"):
                weight.normal_(std=1.0 / weight[0].numel() ** 0.5)
        for name, statistic in model.named_buffers():
            if name.endswith("running_var"):
                statistic.uniform_(0.5, 1.0)
