"""Adapters in PEFT's format with random weights from a fixed seed, and their merge into the weights of a base."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

# With these weights an adapter changes greedy texts, and does not drown the base.
_SPREAD = 0.2
LLAMA_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Lora:
    """The options of an adapter. `targets`: whether it has a module. `ranks`, `alphas`: of modules, as patterns."""

    seed: int
    rank: int = 4
    alpha: float = 8
    target_modules: str | tuple[str, ...] = LLAMA_LINEARS
    use_rslora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def targets(self, module: str) -> bool:
        """Whether the adapter has a module of the base, by PEFT's documentation of `target_modules`."""
        if self.target_modules == "all-linear":
            return True
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, module) is not None
        return module.rsplit(".", maxsplit=1)[-1] in self.target_modules

    def weights(self, model: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
        """Return A, B and the scale of each module, float32."""
        drawn = torch.Generator().manual_seed(self.seed)
        found = {}
        for name, (outputs, inputs) in linear_sizes(model).items():
            if not self.targets(name):
                continue
            rank = next((each for key, each in self.ranks.items() if name.endswith(key)), self.rank)
            alpha = next((each for key, each in self.alphas.items() if name.endswith(key)), self.alpha)
            a = torch.randn(rank, inputs, generator=drawn) * _SPREAD
            b = torch.randn(outputs, rank, generator=drawn) * _SPREAD
            found[name] = a, b, alpha / (rank**0.5 if self.use_rslora else rank)
        return found


def linear_sizes(model: Any) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of each linear layer but the head, by name."""
    head = model.get_output_embeddings()
    sizes = {}
    for name, module in model.named_modules():
        if module is head:
            continue
        if isinstance(module, torch.nn.Linear):
            sizes[name] = module.out_features, module.in_features
        elif type(module).__name__ == "Conv1D":
            sizes[name] = module.nf, module.nx
    return sizes


def save_lora(folder: Path, lora: Lora, model: Any, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
    """Write the adapter of a base. `change`: changes the content of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b, _) in lora.weights(model).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(tensors, folder / "adapter_model.safetensors")
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "base",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules),
        "use_dora": False,
        "use_rslora": lora.use_rslora,
        "modules_to_save": None,
        "rank_pattern": dict(lora.ranks),
        "alpha_pattern": dict(lora.alphas),
        **lora.more,
    }
    change(config)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge(model: Any, lora: Lora) -> Any:
    """Add scale · B·A to the weights of a base, and return it."""
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, (a, b, scale) in lora.weights(model).items():
            weight = modules[name].weight
            update = scale * (b @ a)
            weight += update if isinstance(modules[name], torch.nn.Linear) else update.t()
    return model
