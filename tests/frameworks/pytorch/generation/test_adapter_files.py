"""Adapters that are not served are refused with a message that names the file, the option and the remedy."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from safetensors.torch import load_file, save_file

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.generation.decoders.adapters.config import read_config
from frameworks.pytorch.generation.decoders.adapters.files import read_adapter
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import ids_of, load_generating, request
from tests.frameworks.pytorch.generation.test_decoders import prompts_of
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.models.lora_folders import Lora, save_lora

PLAIN = Lora(1)


def saved(folder: Path, lora: Lora = PLAIN, **changes: Any) -> Path:
    """Save an adapter with changes of its config."""
    return save_lora(folder / "adapter", lora, causal_model(), lambda config: config.update(changes))


def change_weights(folder: Path, **changes: torch.Tensor) -> None:
    """Replace or add tensors of a saved adapter; an empty one removes its name."""
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items() if len(tensor)}, file)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("bias", "all"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1]]),
        ("alora_invocation_tokens", [1, 2]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("peft_type", "IA3"),
        ("r", 0),
        ("r", 2048),
        ("lora_alpha", "16"),
        ("rank_pattern", {"q_proj": True}),
        ("alpha_pattern", ["q_proj"]),
        ("target_modules", []),
        ("target_modules", [1]),
        ("layers_to_transform", ["0"]),
        ("an_option_of_tomorrow", 3),
    ],
)
def test_unserved_option_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(InvalidModel, match=rf"adapter_config\.json: {key}: expected"):
        read_config(saved(tmp_path, PLAIN, **{key: value}))


def test_harmless_options_are_accepted(tmp_path: Path) -> None:
    """PEFT 0.21 writes these."""
    more = {"qalora_group_size": 16, "megatron_core": "megatron.core", "loftq_config": {}, "an_option": None}
    assert (
        read_config(saved(tmp_path, PLAIN, **more, peft_version="0.21.2", ensure_weight_tying=False)).rank == PLAIN.rank
    )


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    folder = saved(tmp_path)
    (folder / missing).unlink()
    (folder / "adapter_model.bin").write_bytes(b"a pickle")
    with pytest.raises(InvalidModel, match=missing):
        read_adapter(folder)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidModel, match="not a readable safetensors file"):
        read_adapter(folder)


Q_A = "base_model__model__model__layers__0__self_attn__q_proj__lora_A__weight"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({Q_A: torch.zeros(3, 64)}, r"q_proj: expected the rank 4"),
        ({Q_A: torch.zeros(0)}, r"q_proj: expected lora_A and lora_B, got one"),
        ({"base_model__model__lm_head__weight": torch.zeros(300, 64)}, r"lm_head\.weight \[300, 64\]"),
        (
            {Q_A.replace("lora_A__weight", "lora_magnitude_vector"): torch.zeros(64)},
            r"lora_magnitude_vector \[64\]; such adapters are not served",
        ),
        ({Q_A: torch.zeros(4, 64, dtype=torch.int32)}, r"expected the dtype F32, F16, BF16, F64, got I32; save the"),
    ],
    ids=["rank", "half", "head", "dora", "integers"],
)
def test_unexpected_tensors_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], message: str) -> None:
    folder = saved(tmp_path)
    change_weights(folder, **tensors)
    with pytest.raises(InvalidModel, match=message):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("lora", "changes", "message"),
    [
        (PLAIN, {"target_modules": ["q_proj"]}, r"have beyond them model\.layers\.0\.mlp\.down_proj"),
        (Lora(1, target_modules=("q_proj",)), {"target_modules": ["q_proj", "k_proj"]}, r"the weights lack .*k_proj"),
        (PLAIN, {"exclude_modules": ["v_proj"]}, r"have beyond them .*v_proj"),
        (PLAIN, {"layers_to_transform": [1]}, r"have beyond them model\.layers\.0"),
        (PLAIN, {"target_modules": r"(((.*"}, r"expected patterns of module names"),
    ],
    ids=["more", "fewer", "excluded", "layers", "pattern"],
)
def test_modules_differ_from_targets(
    made_once: FolderMaker, tmp_path: Path, lora: Lora, changes: dict[str, Any], message: str
) -> None:
    model = load_generating(made_once(save_causal_model), blocks=8)
    with pytest.raises(InvalidModel, match=message):
        model.load_adapter("a", saved(tmp_path, lora, **changes))


def test_adapter_of_another_base_is_refused(made_once: FolderMaker, tmp_path: Path) -> None:
    model = load_generating(made_once(save_causal_model), blocks=8)
    for number, other in enumerate([causal_model(num_hidden_layers=3), causal_model(hidden_size=32)]):
        with pytest.raises(InvalidModel, match="is it an adapter of this model"):
            model.load_adapter("a", save_lora(tmp_path / str(number), PLAIN, other))
    assert model.spec.generation.adapters == ()


def test_infinite_weights_are_refused(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    change_weights(folder, **{Q_A: torch.full((4, 64), float("inf"))})
    with pytest.raises(InvalidModel, match="expected finite weights"):
        load_generating(made_once(save_causal_model), blocks=8).load_adapter("a", folder)


def test_adapter_of_the_head_is_refused(made_once: FolderMaker, tmp_path: Path) -> None:
    folder = saved(tmp_path, Lora(1, target_modules=("q_proj",)), target_modules=["q_proj", "lm_head"])
    pair = {"base_model.model.lm_head.lora_A.weight": (4, 64), "base_model.model.lm_head.lora_B.weight": (300, 4)}
    change_weights(folder, **{name.replace(".", "__"): torch.ones(shape) for name, shape in pair.items()})
    with pytest.raises(InvalidModel, match="lm_head: expected a linear layer of the base below its head"):
        load_generating(made_once(save_causal_model), blocks=8).load_adapter("a", folder)


def test_other_tokenizer_is_ignored_and_logged(made_once: FolderMaker, tmp_path: Path) -> None:
    base = made_once(save_causal_model)
    model = load_generating(base, blocks=8)
    folder = saved(tmp_path)
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    (folder / "chat_template.jinja").write_text("another")
    with structlog.testing.capture_logs() as logs:
        model.load_adapter("a", folder)
    ignored = [line["file"] for line in logs if "is ignored" in line["event"]]
    assert ignored == ["chat_template.jinja"]


def test_int8_base_runs_with_adapter(made_once: FolderMaker, tmp_path: Path) -> None:
    """An adapter whose B is zero gives the texts of the base; another one gives others."""
    zero = Lora(1)
    folder = saved(tmp_path, zero)
    tensors = load_file(folder / "adapter_model.safetensors")
    cleared = {name: each.zero_() if "lora_B" in name else each for name, each in tensors.items()}
    save_file(cleared, folder / "adapter_model.safetensors")
    strong = save_lora(tmp_path / "strong", Lora(2, alpha=16), causal_model())
    tables = [{"name": "zero", "path": folder}, {"name": "strong", "path": strong}]
    model = load_generating(made_once(save_causal_model), blocks=40, dtype="int8", min_cosine=0, adapters=tables)
    numbers = [0, *(each.number for each in model.spec.generation.adapters)]
    [prompt] = prompts_of(20)
    base, with_zero, with_strong = (ids_of(model, request(1, prompt, 12, adapter_id=number))[1] for number in numbers)
    assert base == with_zero != with_strong


def test_model_with_own_caches_refuses_adapters(made_once: FolderMaker, tmp_path: Path) -> None:
    """Mamba has no attention: transformers' own caches compute it."""
    with pytest.raises(InvalidModel, match="runs with transformers' own caches"):
        load_generating(
            made_once(save_causal_model, model_type="mamba"), adapters=[{"name": "a", "path": saved(tmp_path)}]
        )
