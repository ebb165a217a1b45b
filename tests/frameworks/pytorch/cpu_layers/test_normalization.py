"""Normalizations that are folded into convolutions: the same results, and modules of another order stay."""

from typing import Any

import pytest
import torch
import transformers

from frameworks.pytorch.cpu_layers.normalization import fold_normalizations


class Block(torch.nn.Module):
    """A convolution with its normalization, in either order."""

    def __init__(self, normalization: torch.nn.Module, is_first: bool = False, **options: Any) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 6, 3, padding=1, **options)
        self.normalization = normalization
        self._is_first = is_first

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self._is_first:
            return self.convolution(self.normalization(values))  # type: ignore[no-any-return]
        return self.normalization(self.convolution(values))  # type: ignore[no-any-return]


def with_statistics(model: torch.nn.Module) -> torch.nn.Module:
    """Give each normalization random values; return the model in eval mode."""
    torch.manual_seed(5)
    for module in model.modules():
        if type(module).__name__.endswith("BatchNorm2d"):
            for name, low, high in (
                ("running_mean", -1, 1), ("running_var", 0.5, 2), ("weight", 0.5, 2), ("bias", -1, 1),
            ):  # fmt: skip
                value = getattr(module, name)
                if value is not None:
                    value.data.uniform_(low, high)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_folded_block_equals_block(affine: bool, bias: bool) -> None:
    block = with_statistics(Block(torch.nn.BatchNorm2d(6, eps=1e-3, affine=affine), bias=bias))
    values = torch.randn(2, 4, 9, 7)
    expected = block(values)
    assert len(fold_normalizations(block)) == 1
    assert isinstance(block.normalization, torch.nn.Identity)
    torch.testing.assert_close(block(values), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "block",
    [
        Block(torch.nn.BatchNorm2d(4), is_first=True),
        Block(torch.nn.BatchNorm2d(6, track_running_stats=False)),
        Block(torch.nn.GroupNorm(2, 6)),
        Block(torch.nn.BatchNorm2d(6)).bfloat16(),
    ],
    ids=["normalization first", "statistics of the batch", "groups", "bf16"],
)
def test_other_blocks_stay(block: torch.nn.Module) -> None:
    parts = with_statistics(block).state_dict().keys()
    assert fold_normalizations(block) == []
    assert block.state_dict().keys() == parts
    assert not isinstance(block.normalization, torch.nn.Identity)


def test_block_in_training_stays() -> None:
    assert fold_normalizations(Block(torch.nn.BatchNorm2d(6)).train()) == []


def test_folded_detector_equals_detector() -> None:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[2, 1], layer_type="bottleneck", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_queries=6,
    )  # fmt: skip
    model = with_statistics(transformers.DetrForObjectDetection(config))
    pixels = torch.randn(2, 3, 50, 70)
    with torch.inference_mode():
        expected = model(pixels)
        # The first convolution, three in each of the three bottlenecks, and the shortcut of each stage.
        assert len(fold_normalizations(model)) == 12
        found = model(pixels)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.pred_boxes, expected.pred_boxes, rtol=1e-4, atol=1e-4)
