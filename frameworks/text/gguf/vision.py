"""The vision part of a language model in a GGUF file: the mmproj file that llama.cpp's users have beside it.

`read_vision` states it as transformers' `config.json` and `processor_config.json` do, and says which tensors make each
parameter. Names, keys and defaults are those of llama.cpp (conversion/ and tools/mtmd/clip.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.config import read_config
from frameworks.text.gguf.header import GgufFile
from frameworks.text.gguf.special_tokens import TOKENS

_KEY = "clip.vision"
_IMAGE_TOKEN = "<image>"  # noqa: S105 - of a vocabulary
_LANCZOS, _BILINEAR, _BICUBIC = 1, 2, 3  # of Pillow
Join = Literal["rows", "frames"]
"""How several tensors make one parameter: one after the other, or as neighbours in its third dimension."""


@dataclass(frozen=True, slots=True)
class VisionParameter:
    """The tensors of one parameter, all of the same shape in torch's order. `is_less_one`: the parameter is 1 less."""

    tensors: tuple[str, ...]
    shape: tuple[int, ...]
    join: Join = "rows"
    is_less_one: bool = False


_Parameters = dict[str, VisionParameter]


@dataclass(frozen=True, slots=True)
class VisionPart:
    """`config`: the content of config.json of the whole model. `processor`: of processor_config.json. `text_prefix`:
    before the names of the parameters of the text decoder, where a model of texts has `model.`. `parameters`: those of
    the mmproj file, by name. `tokens`: attributes of the tokenizer that the processor reads.
    """

    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    text_prefix: str
    parameters: Mapping[str, VisionParameter]
    tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tower:
    """The sizes of a vision transformer. `image`, `patch`: pixels of a side."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    image: int
    patch: int
    norm_epsilon: float
    activation: str
    mean: list[float]
    deviation: list[float]

    @property
    def patches_of_side(self) -> int:
        return self.image // self.patch


def read_vision(text: GgufFile, file: GgufFile) -> VisionPart:
    """`text`: the header of the language model, as `read_gguf` checks it. `file`: of the mmproj file.

    Raises InvalidModel for a projector that is not served, and where both files do not fit, a tensor is missing,
    unknown, or of another shape than the metadata say.
    """
    if file.text("general.architecture") != "clip" or not file.flag("clip.has_vision_encoder", False):
        raise file.wrong("general.architecture", "clip, with a vision encoder", file.metadata["general.architecture"])
    kind = file.text("clip.projector_type") or ""
    if kind not in _PROJECTORS:
        raise file.wrong("clip.projector_type", f"one of {', '.join(_PROJECTORS)}", kind or None)
    tower = _read_tower(file)
    config = read_config(text, has_vision=True)
    hidden = file.integer(f"{_KEY}.projection_dim")
    if hidden != config["hidden_size"]:
        raise file.wrong(f"{_KEY}.projection_dim", f"{config['hidden_size']}, as {text.path.name} has", hidden)
    found = _PROJECTORS[kind](text, file, tower, config)
    _check(file, found.parameters)
    return found


def _read_tower(file: GgufFile) -> _Tower:
    layers = file.integer(f"{_KEY}.block_count")
    if layers > len(file.tensors):
        raise file.wrong(f"{_KEY}.block_count", f"at most {len(file.tensors)} as tensors", layers)
    activation = "gelu_pytorch_tanh" if file.flag("clip.use_gelu", False) else "quick_gelu"
    return _Tower(
        _size(file, "embedding_length"),
        _size(file, "feed_forward_length"),
        layers,
        _size(file, "attention.head_count"),
        _size(file, "image_size"),
        _size(file, "patch_size"),
        file.number(f"{_KEY}.attention.layer_norm_epsilon"),
        "silu" if file.flag("clip.use_silu", False) else activation,
        _channels(file, "image_mean"),
        _channels(file, "image_std"),
    )


def _size(file: GgufFile, name: str, default: int | None = None) -> int:
    key = f"{_KEY}.{name}"
    found = file.integer(key, default)
    if not found:
        raise file.wrong(key, "at least 1", found)
    return found


def _channels(file: GgufFile, name: str) -> list[float]:
    key = f"{_KEY}.{name}"
    found = file.numbers(key)
    if found is None or len(found) != 3:
        raise file.wrong(key, "three numbers", found)
    return found


def _token(text: GgufFile, name: str) -> int:
    try:
        return text.strings(TOKENS).index(name)
    except ValueError:
        raise text.wrong(TOKENS, f"the token {name} for its images", None) from None


def _siglip(tower: _Tower) -> dict[str, Any]:
    """Return the config of SigLIP's transformer."""
    return {
        "hidden_size": tower.hidden,
        "intermediate_size": tower.feed_forward,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "image_size": tower.image,
        "patch_size": tower.patch,
        "layer_norm_eps": tower.norm_epsilon,
        "hidden_act": tower.activation,
    }


def _feed_forward_names(file: GgufFile, hidden: int) -> tuple[str, str]:
    """Return the names of both layers: the one that widens, and the other. Older files have them exchanged."""
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    is_swapped = first is not None and first.shape[0] == hidden != first.shape[-1]
    return ("ffn_down", "ffn_up") if is_swapped else ("ffn_up", "ffn_down")


def _encoder(file: GgufFile, tower: _Tower, prefix: str) -> _Parameters:
    """Return the embeddings of patches, the layers of SigLIP's transformer, and the norm after them."""
    hidden, wide, num_patches = tower.hidden, tower.feed_forward, tower.patches_of_side**2
    up, down = _feed_forward_names(file, hidden)
    patch, embeddings = (hidden, 3, tower.patch, tower.patch), f"{prefix}.embeddings"
    found: _Parameters = {
        f"{embeddings}.patch_embedding.weight": VisionParameter(("v.patch_embd.weight",), patch),
        f"{embeddings}.patch_embedding.bias": VisionParameter(("v.patch_embd.bias",), (hidden,)),
        f"{embeddings}.position_embedding.weight": VisionParameter(("v.position_embd.weight",), (num_patches, hidden)),
    }
    for layer in range(tower.layers):
        path, block = f"{prefix}.encoder.layers.{layer}", f"v.blk.{layer}"
        for name in "qkv":
            found |= _linear(f"{path}.self_attn.{name}_proj", f"{block}.attn_{name}", hidden, hidden)
        found |= _linear(f"{path}.self_attn.out_proj", f"{block}.attn_out", hidden, hidden)
        found |= _linear(f"{path}.mlp.fc1", f"{block}.{up}", wide, hidden)
        found |= _linear(f"{path}.mlp.fc2", f"{block}.{down}", hidden, wide)
        for number in (1, 2):
            found |= _norm(f"{path}.layer_norm{number}", f"{block}.ln{number}", hidden)
    return found | _norm(f"{prefix}.post_layernorm", "v.post_ln", hidden)


def _norm(path: str, tensor: str, size: int, kinds: tuple[str, ...] = ("weight", "bias")) -> _Parameters:
    return {f"{path}.{kind}": VisionParameter((f"{tensor}.{kind}",), (size,)) for kind in kinds}


def _linear(path: str, tensor: str, outputs: int, inputs: int) -> _Parameters:
    weight, bias = (
        VisionParameter((f"{tensor}.weight",), (outputs, inputs)),
        VisionParameter((f"{tensor}.bias",), (outputs,)),
    )
    return {f"{path}.weight": weight, f"{path}.bias": bias}


def _images(tower: _Tower, kind: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of a processor of images."""
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": tower.mean,
        "image_std": tower.deviation,
        **settings,
    }


def _whole(text: dict[str, Any], architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """Return the config of a model around that of its text decoder."""
    own = {name: value for name, value in text.items() if name != "architectures"}
    shared = {name: text[name] for name in ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")}
    return {"architectures": [architecture], "model_type": model_type, "text_config": own, **shared, **more}


def _idefics3(text: GgufFile, file: GgufFile, tower: _Tower, config: dict[str, Any]) -> VisionPart:
    """SmolVLM and Idefics 3: tiles of an image, each with its row and column."""
    factor, prefix = _size(file, "projector.scale_factor", 2), "model.vision_model"
    side = tower.patches_of_side
    for token in ("<fake_token_around_image>", "<global-img>"):
        _token(text, token)
    vision = _siglip(tower)
    whole = _whole(
        config, "Idefics3ForConditionalGeneration", "idefics3", vision_config=vision, scale_factor=factor,
        image_token_id=_token(text, _IMAGE_TOKEN),
    )  # fmt: skip
    longest = _size(file, "preproc_image_size", 4 * tower.image)
    tiles = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tower.image}}
    images = _images(
        tower, "Idefics3ImageProcessor", **tiles, resample=_LANCZOS, do_image_splitting=True, do_pad=True
    )  # fmt: skip
    parameters = _encoder(file, tower, prefix)
    parameters["model.connector.modality_projection.proj.weight"] = VisionParameter(
        ("mm.model.fc.weight",), (config["hidden_size"], tower.hidden * factor * factor)
    )
    processor = {
        "processor_class": "Idefics3Processor", "image_seq_len": (side // factor) ** 2, "image_processor": images,
    }  # fmt: skip
    return VisionPart(whole, processor, "model.text_model.", parameters)


def _gemma3(text: GgufFile, file: GgufFile, tower: _Tower, config: dict[str, Any]) -> VisionPart:
    """Gemma 3: an image of a fixed size, whose patches are averaged."""
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    ids = {f"{name}_index": _token(text, token) for name, token in tokens.items()}
    num_tokens = (tower.patches_of_side // _size(file, "projector.scale_factor", 4)) ** 2
    vision = _siglip(tower) | {"model_type": "siglip_vision_model", "vision_use_head": False}
    whole = _whole(
        config, "Gemma3ForConditionalGeneration", "gemma3", vision_config=vision, mm_tokens_per_image=num_tokens, **ids
    )
    projector, size = "model.multi_modal_projector", {"height": tower.image, "width": tower.image}
    parameters = _encoder(file, tower, "model.vision_tower")
    parameters[f"{projector}.mm_input_projection_weight"] = VisionParameter(
        ("mm.input_projection.weight",), (tower.hidden, config["hidden_size"])
    )
    parameters[f"{projector}.mm_soft_emb_norm.weight"] = VisionParameter(
        ("mm.soft_emb_norm.weight",), (tower.hidden,), is_less_one=True
    )
    processor = {
        "processor_class": "Gemma3Processor",
        "image_seq_length": num_tokens,
        "image_processor": _images(tower, "Gemma3ImageProcessor", size=size, resample=_BILINEAR),
    }
    return VisionPart(whole, processor, "model.language_model.", parameters, tokens)


def _qwen2_vl(text: GgufFile, file: GgufFile, tower: _Tower, config: dict[str, Any]) -> VisionPart:
    """Qwen2-VL and Qwen2.5-VL: images of any size, whose frames are taken in pairs."""
    is_second = file.text("clip.projector_type") == "qwen2.5vl_merger"
    name, class_name = ("qwen2_5_vl", "Qwen2_5_VL") if is_second else ("qwen2_vl", "Qwen2VL")
    merge, hidden, prefix = _size(file, "spatial_merge_size", 2), tower.hidden, "model.visual"
    vision: dict[str, Any] = {"depth": tower.layers, "num_heads": tower.heads, "patch_size": tower.patch}
    vision |= {"in_channels": 3, "spatial_merge_size": merge, "temporal_patch_size": 2, "hidden_act": tower.activation}
    up, down = _feed_forward_names(file, hidden)
    first = file.tensors.get(f"v.blk.0.{up}.weight")
    wide = tower.feed_forward if first is None else first.shape[0]  # the metadata of Qwen2-VL have another number
    if is_second:
        step = _size(file, "n_wa_pattern")
        vision |= {"hidden_size": hidden, "intermediate_size": wide, "out_hidden_size": config["hidden_size"]}
        vision |= {"window_size": _size(file, "window_size", 112)}
        vision |= {"fullatt_block_indexes": list(range(step - 1, tower.layers, step))}
    else:
        vision |= {"embed_dim": hidden, "hidden_size": config["hidden_size"], "mlp_ratio": wide // hidden}
    frames = ("v.patch_embd.weight", "v.patch_embd.weight.1")
    patch = VisionParameter(frames, (hidden, 3, tower.patch, tower.patch), "frames")
    parameters = {f"{prefix}.patch_embed.proj.weight": patch}
    layer_norm = ("weight",) if is_second else ("weight", "bias")
    for layer in range(tower.layers):
        path, block = f"{prefix}.blocks.{layer}", f"v.blk.{layer}"
        for kind, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
            parts = tuple(f"{block}.attn_{each}.{kind}" for each in "qkv")
            parameters[f"{path}.attn.qkv.{kind}"] = VisionParameter(parts, shape)
        linears = [(f"{path}.attn.proj", f"{block}.attn_out", hidden, hidden)]
        if is_second:
            linears += [(f"{path}.mlp.gate_proj", f"{block}.ffn_gate", wide, hidden)]
        names = ("up_proj", "down_proj") if is_second else ("fc1", "fc2")
        linears += [(f"{path}.mlp.{names[0]}", f"{block}.{up}", wide, hidden)]
        linears += [(f"{path}.mlp.{names[1]}", f"{block}.{down}", hidden, wide)]
        for linear in linears:
            parameters |= _linear(*linear)
        for number in (1, 2):
            parameters |= _norm(f"{path}.norm{number}", f"{block}.ln{number}", hidden, layer_norm)
    merged = hidden * merge * merge
    parameters |= _norm(f"{prefix}.merger.ln_q", "v.post_ln", hidden, layer_norm)
    parameters |= _linear(f"{prefix}.merger.mlp.0", "mm.0", merged, merged)
    parameters |= _linear(f"{prefix}.merger.mlp.2", "mm.2", config["hidden_size"], merged)
    tokens = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    tokens |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {key: _token(text, token) for key, token in tokens.items()}
    own = config | {"model_type": f"{name}_text"}
    whole = _whole(own, f"{class_name}ForConditionalGeneration", name, vision_config=vision, **ids)
    pixels = {"shortest_edge": _size(file, "image_min_pixels", 56 * 56)}
    pixels |= {"longest_edge": _size(file, "image_max_pixels", 28 * 28 * 16384)}
    sizes = {"size": pixels, "patch_size": tower.patch, "merge_size": merge, "temporal_patch_size": 2}
    processor = {
        "processor_class": f"{class_name}Processor",
        "image_processor": _images(tower, "Qwen2VLImageProcessor", **sizes, resample=_BICUBIC),
        "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor", **sizes},
    }
    return VisionPart(whole, processor, "model.language_model.", parameters)


def _check(file: GgufFile, parameters: Mapping[str, VisionParameter]) -> None:
    """Compare the tensors of the file with those of the parameters."""
    known = {tensor: parameter.shape for parameter in parameters.values() for tensor in parameter.tensors}
    for name, shape in known.items():
        found = file.tensors.get(name)
        if found is None or found.shape != shape:
            got = "none" if found is None else f"the shape {list(found.shape)}"
            raise InvalidModel(
                f"{file.path}: tensor {name}: expected the shape {list(shape)} by the metadata, got {got}"
            )
        if len(shape) != 2 and not found.block_type.is_plain:
            raise InvalidModel(f"{file.path}: tensor {name}: expected F32 or F16, got {found.block_type.name}")
    unknown = next((name for name in file.tensors if name not in known), None)
    if unknown is not None:
        raise InvalidModel(
            f"{file.path}: tensor {unknown[:100]}: expected none of this name in a vision part of "
            f"{file.text('clip.projector_type')}; this kind of model is not served"
        )


_PROJECTORS: dict[str, Callable[[GgufFile, GgufFile, _Tower, dict[str, Any]], VisionPart]] = {
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "qwen2vl_merger": _qwen2_vl,
    "qwen2.5vl_merger": _qwen2_vl,
}
