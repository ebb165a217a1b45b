"""The vision part of a language model in a GGUF file: the mmproj file that llama.cpp's users have beside it.

`read_vision` states it as transformers' `config.json` and `processor_config.json` do, and says which tensors make each
parameter. Names, keys and defaults are those of llama.cpp (conversion/ and tools/mtmd/clip.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.config import read_config
from frameworks.text.gguf.header import GgufFile
from frameworks.text.gguf.special_tokens import TOKENS
from frameworks.text.gguf.vision_towers import (
    KEY,
    Parameters,
    Tower,
    VisionParameter,
    encoder_config,
    encoder_parameters,
    linear_parameters,
    norm_parameters,
    qwen_block_parameters,
    qwen_intermediate_size,
    read_tower,
    size_of,
)

_LANCZOS, _BILINEAR, _BICUBIC = 1, 2, 3  # of Pillow


@dataclass(frozen=True, slots=True)
class VisionPart:
    """`config`: the content of config.json of the whole model. `processor`: of processor_config.json. `text_prefix`:
    before the names of the parameters of the text decoder, where a model of texts has `model.`. `parameters`: those of
    the mmproj file. `tokens`: attributes of the tokenizer that the processor reads.
    """

    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    text_prefix: str
    parameters: Parameters
    tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Files:
    """The headers of both files, and what they state. `config`: of the text decoder."""

    text: GgufFile
    projector: GgufFile
    tower: Tower
    config: dict[str, Any]

    @property
    def text_size(self) -> int:
        """Of a vector that takes the place of a token's embedding."""
        found: int = self.config["hidden_size"]
        return found

    def token_id(self, token: str) -> int:
        """Raises InvalidModel where the vocabulary does not have it."""
        try:
            return self.text.strings(TOKENS).index(token)
        except ValueError:
            raise self.text.wrong(TOKENS, f"the token {token} for images", None) from None

    def size(self, name: str, default: int | None = None) -> int:
        return size_of(self.projector, name, default)

    def whole(self, architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
        """Return the config of the whole model."""
        own = {name: value for name, value in self.config.items() if name != "architectures"}
        names = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
        shared = {name: self.config[name] for name in names}
        return {"architectures": [architecture], "model_type": model_type, "text_config": own, **shared, **more}

    def images(self, kind: str, **settings: Any) -> dict[str, Any]:
        """Return the settings of a processor of images."""
        return {
            "image_processor_type": kind,
            "do_convert_rgb": True,
            "do_resize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": self.tower.image_mean,
            "image_std": self.tower.image_std,
            **settings,
        }


def read_vision(text: GgufFile, file: GgufFile) -> VisionPart:
    """`text`: the header of the language model. `file`: of the mmproj file.

    Raises InvalidModel for a language model or a projector that is not served, and where both files do not fit, a
    tensor is missing, unknown, or of another shape than the metadata say.
    """
    if file.text("general.architecture") != "clip" or not file.flag("clip.has_vision_encoder", False):
        found = file.text("general.architecture")
        raise file.wrong("general.architecture", "clip with clip.has_vision_encoder", found)
    kind = file.text("clip.projector_type") or ""
    if kind not in _PROJECTORS:
        raise file.wrong("clip.projector_type", f"one of {', '.join(_PROJECTORS)}", kind or None)
    part = _PROJECTORS[kind](_Files(text, file, read_tower(file), read_config(text, has_vision=True)))
    _check(file, part.parameters, text)
    return part


def _check(file: GgufFile, parameters: Parameters, text: GgufFile) -> None:
    """Compare the tensors of the file with those of the parameters."""
    known = {tensor: parameter.shape for parameter in parameters.values() for tensor in parameter.tensors}
    for name, shape in known.items():
        found = file.tensors.get(name)
        if found is None or found.shape != shape:
            got = "none" if found is None else f"{list(found.shape)}"
            raise InvalidModel(
                f"{file.path}: tensor {name}: expected the shape {list(shape)} by its metadata and those of "
                f"{text.path.name}, got {got}; do both files belong to one model?"
            )
        if len(shape) != 2 and not found.block_type.is_plain:
            raise InvalidModel(f"{file.path}: tensor {name}: expected F32 or F16, got {found.block_type.name}")
    unknown = next((name for name in file.tensors if name not in known), None)
    if unknown is not None:
        raise InvalidModel(
            f"{file.path}: tensor {unknown[:100]}: expected none of this name in a vision part of "
            f"{file.text('clip.projector_type')}; this kind of model is not served"
        )


def _idefics3(files: _Files) -> VisionPart:
    """SmolVLM and Idefics 3: tiles of an image, each with its row and column."""
    tower, factor = files.tower, files.size("projector.scale_factor", 2)
    for token in ("<fake_token_around_image>", "<global-img>"):
        files.token_id(token)
    whole = files.whole(
        "Idefics3ForConditionalGeneration",
        "idefics3",
        vision_config=encoder_config(tower),
        scale_factor=factor,
        image_token_id=files.token_id("<image>"),
    )
    parameters = encoder_parameters(files.projector, tower, "model.vision_model")
    parameters["model.connector.modality_projection.proj.weight"] = VisionParameter(
        ("mm.model.fc.weight",), (files.text_size, tower.hidden_size * factor * factor)
    )
    longest = files.size("preproc_image_size", 4 * tower.image_size)
    tiles = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tower.image_size}}
    processor = {
        "processor_class": "Idefics3Processor",
        "image_seq_len": (tower.patches_of_side // factor) ** 2,
        "image_processor": files.images(
            "Idefics3ImageProcessor", **tiles, resample=_LANCZOS, do_image_splitting=True, do_pad=True
        ),
    }
    return VisionPart(whole, processor, "model.text_model.", parameters)


def _gemma3(files: _Files) -> VisionPart:
    """Gemma 3: an image of a fixed size, whose patches are averaged."""
    tower, projector = files.tower, "model.multi_modal_projector"
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    num_tokens = (tower.patches_of_side // files.size("projector.scale_factor", 4)) ** 2
    whole = files.whole(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        vision_config=encoder_config(tower, model_type="siglip_vision_model", vision_use_head=False),
        mm_tokens_per_image=num_tokens,
        **{f"{name}_index": files.token_id(token) for name, token in tokens.items()},
    )
    parameters = encoder_parameters(files.projector, tower, "model.vision_tower")
    parameters[f"{projector}.mm_input_projection_weight"] = VisionParameter(
        ("mm.input_projection.weight",), (tower.hidden_size, files.text_size)
    )
    parameters[f"{projector}.mm_soft_emb_norm.weight"] = VisionParameter(
        ("mm.soft_emb_norm.weight",), (tower.hidden_size,), is_less_one=True
    )
    size = {"height": tower.image_size, "width": tower.image_size}
    processor = {
        "processor_class": "Gemma3Processor",
        "image_seq_length": num_tokens,
        "image_processor": files.images("Gemma3ImageProcessor", size=size, resample=_BILINEAR),
    }
    return VisionPart(whole, processor, "model.language_model.", parameters, tokens)


def _llava(files: _Files) -> VisionPart:
    """LLaVA 1.5: CLIP's patches of a square image. The file lacks the layers behind those that are read."""
    tower, projector = files.tower, "model.multi_modal_projector"
    kind = files.projector.text(f"{KEY}.mm_patch_merge_type", "flat")
    if kind != "flat":
        raise files.projector.wrong(f"{KEY}.mm_patch_merge_type", "flat", kind)
    whole = files.whole(
        "LlavaForConditionalGeneration",
        "llava",
        vision_config=encoder_config(tower, model_type="clip_vision_model"),
        vision_feature_layer=-1,
        image_seq_length=tower.patches_of_side**2,
        image_token_index=files.token_id("<image>"),
    )
    parameters = encoder_parameters(files.projector, tower, "model.vision_tower", is_clip=True)
    parameters |= linear_parameters(f"{projector}.linear_1", "mm.0", files.text_size, tower.hidden_size)
    parameters |= linear_parameters(f"{projector}.linear_2", "mm.2", files.text_size, files.text_size)
    side = {"height": tower.image_size, "width": tower.image_size}
    images = files.images(
        "LlavaImageProcessor",
        size={"shortest_edge": tower.image_size},
        crop_size=side,
        do_center_crop=True,
        do_pad=True,
        resample=_BICUBIC,
    )
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": tower.patch_size,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": "<image>",
        "image_processor": images,
    }
    return VisionPart(whole, processor, "model.language_model.", parameters)


def _qwen_vl(files: _Files) -> VisionPart:
    """Qwen2-VL to Qwen3-VL: images of any size, whose frames are taken in pairs."""
    tower, file, prefix = files.tower, files.projector, "model.visual"
    generation, model_type, name = _QWEN[file.text("clip.projector_type") or ""]
    hidden, merge = tower.hidden_size, files.size("spatial_merge_size", 2)
    wide, merged = qwen_intermediate_size(file, tower), hidden * merge * merge
    vision: dict[str, Any] = {"depth": tower.num_layers, "num_heads": tower.num_heads, "patch_size": tower.patch_size}
    vision |= {"in_channels": 3, "spatial_merge_size": merge, "temporal_patch_size": 2, "hidden_act": tower.hidden_act}
    parameters = qwen_block_parameters(file, tower, prefix, generation)
    if generation == "2":
        vision |= {"embed_dim": hidden, "hidden_size": files.text_size, "mlp_ratio": wide // hidden}
    else:
        vision |= {"hidden_size": hidden, "intermediate_size": wide, "out_hidden_size": files.text_size}
    if generation == "2.5":
        period = files.size("n_wa_pattern")
        vision["window_size"] = files.size("window_size", 112)
        vision["fullatt_block_indexes"] = list(range(period - 1, tower.num_layers, period))
    if generation == "3":
        positions, deep = tower.patches_of_side**2, _deep_layers(files)
        vision |= {"num_position_embeddings": positions, "deepstack_visual_indexes": deep}
        parameters[f"{prefix}.patch_embed.proj.bias"] = VisionParameter(("v.patch_embd.bias",), (hidden,))
        parameters[f"{prefix}.pos_embed.weight"] = VisionParameter(("v.position_embd.weight",), (positions, hidden))
        mergers = [(f"{prefix}.merger", "v.post_ln", "mm.0", "mm.2", hidden)]
        for index, layer in enumerate(deep):
            tensor = f"v.deepstack.{layer}"
            path = f"{prefix}.deepstack_merger_list.{index}"
            mergers.append((path, f"{tensor}.norm", f"{tensor}.fc1", f"{tensor}.fc2", merged))
        for path, norm, first, second, size in mergers:
            parameters |= norm_parameters(f"{path}.norm", norm, size)
            parameters |= linear_parameters(f"{path}.linear_fc1", first, merged, merged)
            parameters |= linear_parameters(f"{path}.linear_fc2", second, files.text_size, merged)
    else:
        kinds = ("weight",) if generation == "2.5" else ("weight", "bias")
        parameters |= norm_parameters(f"{prefix}.merger.ln_q", "v.post_ln", hidden, kinds)
        parameters |= linear_parameters(f"{prefix}.merger.mlp.0", "mm.0", merged, merged)
        parameters |= linear_parameters(f"{prefix}.merger.mlp.2", "mm.2", files.text_size, merged)
    tokens = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    tokens |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {key: files.token_id(token) for key, token in tokens.items()}
    whole = files.whole(f"{name}ForConditionalGeneration", model_type, vision_config=vision, **ids)
    whole["text_config"]["model_type"] = f"{model_type}_text"
    # The bounds of their own processors, where the file states none.
    pixels = {"shortest_edge": files.size("image_min_pixels", 56 * 56)}
    pixels |= {"longest_edge": files.size("image_max_pixels", 28 * 28 * 16384)}
    sizes = {"size": pixels, "patch_size": tower.patch_size, "merge_size": merge, "temporal_patch_size": 2}
    processor = {
        "processor_class": f"{name}Processor",
        "image_processor": files.images("Qwen2VLImageProcessor", **sizes, resample=_BICUBIC),
        "video_processor": {"video_processor_type": f"Qwen{generation[0]}VLVideoProcessor", **sizes},
    }
    return VisionPart(whole, processor, "model.language_model.", parameters)


def _deep_layers(files: _Files) -> list[int]:
    """Return the layers of the tower whose vectors are added in the text decoder."""
    key, layers = f"{KEY}.is_deepstack_layers", files.tower.num_layers
    found = files.projector.numbers(key) or [0.0] * layers
    if len(found) != layers:
        raise files.projector.wrong(key, f"a value for each of {layers} layers", f"{len(found)}")
    return [layer for layer, is_deep in enumerate(found) if is_deep]


_QWEN = {
    "qwen2vl_merger": ("2", "qwen2_vl", "Qwen2VL"),
    "qwen2.5vl_merger": ("2.5", "qwen2_5_vl", "Qwen2_5_VL"),
    "qwen3vl_merger": ("3", "qwen3_vl", "Qwen3VL"),
}
_PROJECTORS: dict[str, Callable[[_Files], VisionPart]] = {
    "idefics3": _idefics3, "gemma3": _gemma3, "mlp": _llava, **dict.fromkeys(_QWEN, _qwen_vl),
}  # fmt: skip
