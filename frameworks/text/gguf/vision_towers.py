"""The vision transformers in mmproj files of GGUF: their sizes, and the tensors of each parameter of transformers."""

from dataclasses import dataclass
from typing import Any, Literal

from frameworks.text.gguf.header import GgufFile

KEY = "clip.vision"
"""Before the keys of sizes."""
Join = Literal["rows", "frames"]
"""How several tensors make one parameter: one after the other, or as neighbours in its third dimension."""
_BOTH = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class VisionParameter:
    """The tensors of one parameter, all of the same shape in torch's order. `is_less_one`: the parameter is 1 less."""

    tensors: tuple[str, ...]
    shape: tuple[int, ...]
    join: Join = "rows"
    is_less_one: bool = False


Parameters = dict[str, VisionParameter]
"""By the names of transformers."""


@dataclass(frozen=True, slots=True)
class Tower:
    """The sizes of a vision transformer. `image_size`, `patch_size`: pixels of a side. `image_mean`, `image_std`: of
    red, green and blue.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    layer_norm_eps: float
    hidden_act: str
    image_mean: list[float]
    image_std: list[float]

    @property
    def patches_of_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Of the weights of a patch."""
        return (self.hidden_size, 3, self.patch_size, self.patch_size)


def read_tower(file: GgufFile) -> Tower:
    """Raises InvalidModel for a size that is absent, 0 or of another type."""
    layers = size_of(file, "block_count")
    if layers > len(file.tensors):
        raise file.wrong(f"{KEY}.block_count", f"at most {len(file.tensors)} as tensors", layers)
    gelu = "gelu_pytorch_tanh" if file.flag("clip.use_gelu", False) else "quick_gelu"
    return Tower(
        size_of(file, "embedding_length"),
        size_of(file, "feed_forward_length"),
        layers,
        size_of(file, "attention.head_count"),
        size_of(file, "image_size"),
        size_of(file, "patch_size"),
        file.number(f"{KEY}.attention.layer_norm_epsilon"),
        "silu" if file.flag("clip.use_silu", False) else gelu,
        _channels(file, "image_mean"),
        _channels(file, "image_std"),
    )


def size_of(file: GgufFile, name: str, default: int | None = None) -> int:
    """Return an integer above 0 of the vision part. Raises InvalidModel for another one, or without key and default."""
    key = f"{KEY}.{name}"
    found = file.integer(key, default)
    if not found:
        raise file.wrong(key, "at least 1", found)
    return found


def _channels(file: GgufFile, name: str) -> list[float]:
    key = f"{KEY}.{name}"
    found = file.numbers(key)
    if found is None or len(found) != 3:
        raise file.wrong(key, "three numbers", found)
    return found


def encoder_config(tower: Tower, **more: Any) -> dict[str, Any]:
    """Return the config of SigLIP's and CLIP's transformers."""
    return {
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.intermediate_size,
        "num_hidden_layers": tower.num_layers,
        "num_attention_heads": tower.num_heads,
        "image_size": tower.image_size,
        "patch_size": tower.patch_size,
        "layer_norm_eps": tower.layer_norm_eps,
        "hidden_act": tower.hidden_act,
        **more,
    }


def encoder_parameters(file: GgufFile, tower: Tower, prefix: str, *, is_clip: bool = False) -> Parameters:
    """Return the parameters of SigLIP's transformer, or of CLIP's: embeddings of patches, layers and norms."""
    hidden, wide, embeddings = tower.hidden_size, tower.intermediate_size, f"{prefix}.embeddings"
    positions = tower.patches_of_side**2 + int(is_clip)
    found: Parameters = {
        f"{embeddings}.patch_embedding.weight": VisionParameter(("v.patch_embd.weight",), tower.patch_shape),
        f"{embeddings}.position_embedding.weight": VisionParameter(("v.position_embd.weight",), (positions, hidden)),
    }
    if is_clip:
        found[f"{embeddings}.class_embedding"] = VisionParameter(("v.class_embd",), (hidden,))
        found |= norm_parameters(f"{prefix}.pre_layrnorm", "v.pre_ln", hidden)  # as transformers spells it
    else:
        found[f"{embeddings}.patch_embedding.bias"] = VisionParameter(("v.patch_embd.bias",), (hidden,))
    widens, narrows = _feed_forward_names(file, hidden)
    for layer in range(tower.num_layers):
        path, block = f"{prefix}.encoder.layers.{layer}", f"v.blk.{layer}"
        for name in "qkv":
            found |= linear_parameters(f"{path}.self_attn.{name}_proj", f"{block}.attn_{name}", hidden, hidden)
        found |= linear_parameters(f"{path}.self_attn.out_proj", f"{block}.attn_out", hidden, hidden)
        found |= linear_parameters(f"{path}.mlp.fc1", f"{block}.{widens}", wide, hidden)
        found |= linear_parameters(f"{path}.mlp.fc2", f"{block}.{narrows}", hidden, wide)
        for number in (1, 2):
            found |= norm_parameters(f"{path}.layer_norm{number}", f"{block}.ln{number}", hidden)
    # The layers before CLIP's last one are read without it, and files may lack it.
    if is_clip and "v.post_ln.weight" not in file.tensors:
        return found | {f"{prefix}.post_layernorm.{kind}": VisionParameter((), (hidden,)) for kind in _BOTH}
    return found | norm_parameters(f"{prefix}.post_layernorm", "v.post_ln", hidden)


def qwen_block_parameters(file: GgufFile, tower: Tower, prefix: str, generation: str) -> Parameters:
    """Return the layers of the transformers of Qwen-VL. `generation`: "2", "2.5" or "3"."""
    hidden, wide = tower.hidden_size, qwen_intermediate_size(file, tower)
    widens, narrows = _feed_forward_names(file, hidden)
    mlp = {"2": ("fc1", "fc2"), "2.5": ("up_proj", "down_proj"), "3": ("linear_fc1", "linear_fc2")}[generation]
    frames = ("v.patch_embd.weight", "v.patch_embd.weight.1")
    found: Parameters = {f"{prefix}.patch_embed.proj.weight": VisionParameter(frames, tower.patch_shape, "frames")}
    for layer in range(tower.num_layers):
        path, block = f"{prefix}.blocks.{layer}", f"v.blk.{layer}"
        if generation == "3":
            found |= linear_parameters(f"{path}.attn.qkv", f"{block}.attn_qkv", 3 * hidden, hidden)
        else:
            for kind, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
                parts = tuple(f"{block}.attn_{each}.{kind}" for each in "qkv")
                found[f"{path}.attn.qkv.{kind}"] = VisionParameter(parts, shape)
        found |= linear_parameters(f"{path}.attn.proj", f"{block}.attn_out", hidden, hidden)
        if generation == "2.5":
            found |= linear_parameters(f"{path}.mlp.gate_proj", f"{block}.ffn_gate", wide, hidden)
        found |= linear_parameters(f"{path}.mlp.{mlp[0]}", f"{block}.{widens}", wide, hidden)
        found |= linear_parameters(f"{path}.mlp.{mlp[1]}", f"{block}.{narrows}", hidden, wide)
        for number in (1, 2):
            kinds = ("weight",) if generation == "2.5" else _BOTH
            found |= norm_parameters(f"{path}.norm{number}", f"{block}.ln{number}", hidden, kinds)
    return found


def qwen_intermediate_size(file: GgufFile, tower: Tower) -> int:
    """Return the width of the layers; the metadata of Qwen2-VL have another number."""
    widens, _ = _feed_forward_names(file, tower.hidden_size)
    first = file.tensors.get(f"v.blk.0.{widens}.weight")
    return tower.intermediate_size if first is None else first.shape[0]


def _feed_forward_names(file: GgufFile, hidden: int) -> tuple[str, str]:
    """Return the names of both layers: the one that widens, and the other. Older files have them exchanged."""
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    is_swapped = first is not None and first.shape[0] == hidden != first.shape[-1]
    return ("ffn_down", "ffn_up") if is_swapped else ("ffn_up", "ffn_down")


def norm_parameters(path: str, tensor: str, size: int, kinds: tuple[str, ...] = _BOTH) -> Parameters:
    """Return the parameters of a norm."""
    return {f"{path}.{kind}": VisionParameter((f"{tensor}.{kind}",), (size,)) for kind in kinds}


def linear_parameters(path: str, tensor: str, outputs: int, inputs: int) -> Parameters:
    """Return the weight and the bias of a linear layer."""
    return {
        f"{path}.weight": VisionParameter((f"{tensor}.weight",), (outputs, inputs)),
        f"{path}.bias": VisionParameter((f"{tensor}.bias",), (outputs,)),
    }
