"""Tiny Hugging Face folders of one model for each task, random weights from a fixed seed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models.tasks.making import make
from tests.support.models.text_files import VOCABULARY_SIZE, write_json, write_tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC")
SIDE = 32

_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40, "initializer_range": 0.3,
}  # fmt: skip
_TOWER: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "projection_dim": 16,
}  # fmt: skip


def save_task_model(folder: Path, task: str) -> Path:
    """Save a model of a task with its processors. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(21)
    _MAKERS[task](folder)
    return folder


def _labels(names: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def _bert(folder: Path, head: str, names: tuple[str, ...] = LABELS) -> None:
    config = transformers.BertConfig(**_BERT, **_labels(names))
    getattr(transformers, f"BertFor{head}")(config).eval().save_pretrained(folder)
    write_tokenizer(folder, "bert")


def _detr(folder: Path) -> None:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_queries=6, init_std=0.3, **_labels(("ant", "bee", "cat")),
    )  # fmt: skip
    transformers.DetrForObjectDetection(config).eval().save_pretrained(folder)
    transformers.DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 80}).save_pretrained(folder)


def _segformer(folder: Path) -> None:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, initializer_range=0.3,
        **_labels(("ant", "bee", "cat")),
    )  # fmt: skip
    transformers.SegformerForSemanticSegmentation(config).eval().save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.SegformerImageProcessor(size=size).save_pretrained(folder)


def _glpn(folder: Path) -> None:
    config = transformers.GLPNConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, initializer_range=0.3,
    )  # fmt: skip
    transformers.GLPNForDepthEstimation(config).eval().save_pretrained(folder)
    transformers.GLPNImageProcessor(size_divisor=SIDE).save_pretrained(folder)


def _clip(folder: Path) -> None:
    text = {**_TOWER, "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 40, "eos_token_id": 3}
    vision = {**_TOWER, "image_size": SIDE, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    transformers.CLIPModel(config).eval().save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)
    write_tokenizer(folder, "bert")


def _owlvit(folder: Path) -> None:
    text = {**_TOWER, "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 40}
    vision = {**_TOWER, "image_size": SIDE, "patch_size": 8}
    config = transformers.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=_TOWER["hidden_size"])
    transformers.OwlViTForObjectDetection(config).eval().save_pretrained(folder)
    transformers.OwlViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    write_tokenizer(folder, "bert")


def _layoutlm(folder: Path) -> None:
    config = transformers.LayoutLMConfig(**_BERT, **_labels(("start", "end")))
    transformers.LayoutLMForQuestionAnswering(config).eval().save_pretrained(folder)
    write_tokenizer(folder, "bert")


def _lightglue(folder: Path) -> None:
    detector = transformers.SuperPointConfig(
        encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=16, descriptor_decoder_dim=16, max_keypoints=32,
        keypoint_threshold=0.0,
    )  # fmt: skip
    config = transformers.LightGlueConfig(
        keypoint_detector_config=detector,
        descriptor_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        filter_threshold=0.0,
    )
    transformers.LightGlueForKeypointMatching(config).eval().save_pretrained(folder)
    size = {"height": 64, "width": 64}
    transformers.LightGlueImageProcessor(size=size).save_pretrained(folder)


def _wav2vec2(folder: Path) -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, conv_dim=[8, 8],
        conv_stride=[20, 16], conv_kernel=[40, 16], num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, classifier_proj_size=12, **_labels(("clap", "tone", "noise")),
    )  # fmt: skip
    transformers.Wav2Vec2ForSequenceClassification(config).eval().save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=16_000).save_pretrained(folder)


def _videomae(folder: Path) -> None:
    config = transformers.VideoMAEConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, image_size=SIDE, patch_size=8,
        initializer_range=0.3, num_frames=4, tubelet_size=2, **_labels(("run", "walk", "jump")),
    )  # fmt: skip
    transformers.VideoMAEForVideoClassification(config).eval().save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.VideoMAEImageProcessor(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)


def _tapas(folder: Path) -> None:
    config = transformers.TapasConfig(**{**_BERT, "max_position_embeddings": 128})
    transformers.TapasForQuestionAnswering(config).eval().save_pretrained(folder)
    write_tokenizer(folder, "bert")
    file = folder / "tokenizer.json"
    vocabulary = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    # TAPAS has no fast tokenizer.
    file.unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "TapasTokenizer", "model_max_length": 128})


_MAKERS: dict[str, Callable[[Path], object]] = {
    "token-classification": lambda folder: _bert(folder, "TokenClassification"),
    "fill-mask": lambda folder: _bert(folder, "MaskedLM"),
    "question-answering": lambda folder: _bert(folder, "QuestionAnswering", ("start", "end")),
    "zero-shot-classification": lambda folder: _bert(
        folder, "SequenceClassification", ("contradiction", "neutral", "entailment")
    ),
    "object-detection": _detr,
    "image-segmentation": _segformer,
    "depth-estimation": _glpn,
    "zero-shot-image-classification": _clip,
    "zero-shot-object-detection": _owlvit,
    "document-question-answering": _layoutlm,
    "table-question-answering": _tapas,
    "audio-classification": _wav2vec2,
    "video-classification": _videomae,
    "keypoint-matching": _lightglue,
    "mask-generation": lambda folder: make("mask-generation", "sam", folder),
}
TASKS = tuple(_MAKERS)
"""The tasks for which there is a model."""
