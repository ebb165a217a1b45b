"""The forms of transformers' layers that are compiled: where a layer has the parts that its tokens pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import torch

from frameworks.pytorch.encoder_layers.relative_bias import RelativeBias, relative_bias_of


@dataclass(frozen=True, slots=True)
class LayerForm:
    """The paths of a layer's parts; "" for a part that it does not have.

    `query_key_value`, `up`: one Linear for all, or one for each. Two factors of `up`, the activations and what they are
    multiplied by, are a gated feed-forward block. Norms: before attention, of the sum after it, before the feed-forward
    block, of the sum after that. `scales`: tensors [hidden size] that multiply what `output` and `down` compute.
    `returns_tuple`: whether a layer returns its states in one. `bias`: of the scores; `stacks_of` has it of a model.
    """

    query_key_value: tuple[str, ...]
    output: str
    up: tuple[str, ...]
    activation: str
    down: str
    norms: tuple[str, str, str, str]
    is_gated: bool = False
    scales: tuple[str, str] = ("", "")
    returns_tuple: bool = False
    bias: RelativeBias | None = None


FORMS = (
    # BERT, RoBERTa, XLM-R, ELECTRA and others.
    LayerForm(
        ("attention.self.query", "attention.self.key", "attention.self.value"), "attention.output.dense",
        ("intermediate.dense",), "intermediate.intermediate_act_fn", "output.dense",
        ("", "attention.output.LayerNorm", "", "output.LayerNorm"),
    ),
    # DistilBERT.
    LayerForm(
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin",
        ("ffn.lin1",), "ffn.activation", "ffn.lin2", ("", "sa_layer_norm", "", "output_layer_norm"),
    ),
    # MPNet.
    LayerForm(
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o",
        ("intermediate.dense",), "intermediate.intermediate_act_fn", "output.dense",
        ("", "attention.LayerNorm", "", "output.LayerNorm"), returns_tuple=True,
    ),
    # ModernBERT.
    LayerForm(
        ("attn.Wqkv",), "attn.Wo", ("mlp.Wi",), "mlp.act", "mlp.Wo",
        ("attn_norm", "", "mlp_norm", ""), is_gated=True,
    ),
    # NomicBERT.
    LayerForm(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj",
        ("mlp.gate_proj", "mlp.up_proj"), "mlp.act_fn", "mlp.down_proj",
        ("", "post_attention_layernorm", "", "post_mlp_layernorm"), is_gated=True,
    ),
    # SigLIP, CLIP and towers of their form.
    LayerForm(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.out_proj",
        ("mlp.fc1",), "mlp.activation_fn", "mlp.fc2", ("layer_norm1", "", "layer_norm2", ""),
    ),
    # ViT.
    LayerForm(
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.o_proj",
        ("mlp.fc1",), "mlp.activation_fn", "mlp.fc2", ("layernorm_before", "", "layernorm_after", ""),
    ),
    # DINOv2.
    LayerForm(
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.o_proj",
        ("mlp.fc1",), "mlp.activation_fn", "mlp.fc2", ("norm1", "", "norm2", ""),
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    ),
    # DINOv2 with a gated feed-forward block.
    LayerForm(
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.o_proj",
        ("mlp.gate_proj", "mlp.up_proj"), "mlp.act_fn", "mlp.down_proj", ("norm1", "", "norm2", ""),
        is_gated=True, scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    ),
)  # fmt: skip


class NotCompiled(Exception):
    """The layers are of no known form, for the reason in the message."""


def stacks_of(model: torch.nn.Module) -> list[tuple[list[torch.nn.Module], LayerForm]]:
    """Return the layers of each encoder in a model, and their form. None of them may be there."""
    children = [(parent, each) for parent in model.modules() for each in parent.children()]
    lists = [(parent, each) for parent, each in children if isinstance(each, torch.nn.ModuleList)]
    equal = [(parent, list(each)) for parent, each in lists if len({type(layer) for layer in each}) == 1]
    return [
        (layers, replace(form, bias=relative_bias_of(parent)))
        for parent, layers in equal
        for form in FORMS
        if all(_has(layer, form) for layer in layers)
    ]


def _has(layer: torch.nn.Module, form: LayerForm) -> bool:
    linears = (*form.query_key_value, form.output, *form.up, form.down)
    parts = [*linears, *filter(None, (*form.norms, *form.scales)), form.activation]
    try:
        found = [attrgetter(each)(layer) for each in parts]
    except AttributeError:
        return False
    return all(type(each) is torch.nn.Linear for each in found[: len(linears)])


def operation_of(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Return the operation of an epilogue that is this activation function. Raises NotCompiled."""
    from frameworks.pytorch.compiled.simd import elementwise

    known: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
        elementwise.GELU: torch.nn.functional.gelu,
        elementwise.GELU_TANH: partial(torch.nn.functional.gelu, approximate="tanh"),
        elementwise.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
        elementwise.RELU: torch.nn.functional.relu,
        elementwise.SILU: torch.nn.functional.silu,
    }
    values = torch.linspace(-6, 6, 97)
    expected = function(values)
    for operation, each in known.items():
        if torch.allclose(each(values), expected, rtol=0, atol=1e-5):
            return operation
    raise NotCompiled(f"its activation function is {type(function).__name__}")


def epsilon_of(layers: Sequence[torch.nn.Module], form: LayerForm) -> float:
    """Return the epsilon of all norms. Raises NotCompiled."""
    norms = [attrgetter(path)(layer) for layer in layers for path in form.norms if path]
    kinds = {type(each) for each in norms} - {torch.nn.Identity}
    epsilons = {each.eps for each in norms if isinstance(each, torch.nn.LayerNorm)}
    if kinds != {torch.nn.LayerNorm} or len(epsilons) > 1:
        raise NotCompiled("its norms are not one kind of LayerNorm")
    return float(epsilons.pop())
