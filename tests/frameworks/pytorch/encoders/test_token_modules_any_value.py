"""Test that any settings of a module of tokens give the module or InvalidModel, never another exception."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save_file

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.token_modules import Encoder, TokenModules, TokenStates
from frameworks.text.sentence_modules.modules import Module
from tests.frameworks.text.test_config_any_value import junk

SETTINGS: dict[str, dict[str, object]] = {
    "CNN": {"in_embedding_dimension": 4, "out_channels": 2, "kernel_sizes": [1, 3], "stride_sizes": [1, 1]},
    "Dense": {"in_features": 4, "out_features": 3, "bias": True, "activation_function": "torch.nn.GELU"},
    "LSTM": {"embedding_dimension": 4, "hidden_dim": 3, "num_layers": 1, "bidirectional": False},
    "WeightedLayerPooling": {"embedding_dimension": 4, "layer_start": 1, "num_hidden_layers": 2},
}
CASES = [(kind, key) for kind, settings in SETTINGS.items() for key in settings]


@given(case=st.sampled_from(CASES), value=junk)
@example(("CNN", "kernel_sizes"), [1, 3, 5])
@example(("CNN", "stride_sizes"), [2, 2])
@example(("LSTM", "hidden_dim"), 2**40)
@example(("LSTM", "num_layers"), 2)
@example(("Dense", "use_residual"), True)
@example(("WeightedLayerPooling", "layer_start"), -1)
def test_any_setting_is_handled(tmp_path_factory: pytest.TempPathFactory, case: tuple[str, str], value: object) -> None:
    kind, key = case
    folder = tmp_path_factory.getbasetemp() / f"any_{kind}"
    if not folder.exists():
        folder.mkdir()
        made: dict[str, torch.Tensor] = {"linear.weight": torch.ones(3, 4), "linear.bias": torch.ones(3)}
        made |= {f"encoder.{name}": each.detach() for name, each in torch.nn.LSTM(4, 3).named_parameters()}
        for index, size in enumerate((1, 3)):
            made |= {f"convs.{index}.weight": torch.ones(2, 4, size), f"convs.{index}.bias": torch.ones(2)}
        save_file(made | {"layer_weights": torch.ones(2)}, folder / "model.safetensors")
    module = Module(kind, folder, {**SETTINGS[kind], key: value})
    try:
        modules = TokenModules([module], Encoder(4, 3, 9), torch.zeros(1))
    except InvalidModel:
        return
    states = TokenStates(torch.ones(1, 2, 4), torch.ones(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))
    states.layers = [torch.ones(1, 2, 4)] * 3
    assert modules(states).states.shape == (1, 2, modules.size)
