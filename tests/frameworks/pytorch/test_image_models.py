"""Vision models of PyTorch against transformers' own models and processors."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
import transformers
from PIL import Image

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.pytorch.encoders.images.encoder import ImageModel
from frameworks.quantization.comparison import row_cosines
from frameworks.types import TEXT_OUTPUT, Array, TensorBatch, TokenBatch
from tests.frameworks.models.loading import load_torch_model
from tests.support.alike import check_alike
from tests.support.images import encoded, photo
from tests.support.models.text_files import change_json
from tests.support.models.vision_folders import (
    FAMILIES,
    LABELS,
    MAX_TOKENS,
    SIDE,
    processor_config,
    save_image_classifier,
    save_image_embedder,
    save_two_towers,
)

TOLERANCE = 1e-4
"""Relative and absolute: the same modules run on the same pixels, in other batches and orders of memory."""
PHOTOS = [photo(SIDE, SIDE, seed) for seed in range(3)]
TEXTS = ["the cat sat on the mat", "steam", "engine"]


def served(folder: Path, **entry: Any) -> ImageModel:
    model = load_torch_model(folder, **entry)
    assert isinstance(model, ImageModel)
    model.warm_up()
    return model


def pixels_of(model: ImageModel) -> Array:
    processor = model.image_processor
    assert processor is not None
    rows = processor.empty(len(PHOTOS))
    for row, each in zip(rows, PHOTOS, strict=True):
        data = encoded(each, "PNG")
        processor.read(data, processor.check(data, "image"), "image", row)
    return rows


def output_of(model: ImageModel, name: str) -> Array:
    output = model.infer(TensorBatch({"pixel_values": pixels_of(model)}, (name,)))[name]
    assert isinstance(output, np.ndarray)
    assert output.dtype == np.float32
    return output


def reference_pixels(family: str) -> torch.Tensor:
    """Return the pixel values of transformers' own processor."""
    config = processor_config(family)
    processor = getattr(transformers, config["image_processor_type"] + "Pil")(**config)
    values: torch.Tensor = processor([Image.fromarray(each) for each in PHOTOS], return_tensors="pt")["pixel_values"]
    return values


def same_pixels(model: ImageModel, family: str) -> torch.Tensor:
    """Return our pixels, after a check that they are those of the reference but for a level of rounding."""
    ours, theirs = torch.from_numpy(pixels_of(model)), reference_pixels(family)
    assert (ours - theirs).abs().max() <= 1.01 / 255 / 0.2
    return ours


@pytest.mark.parametrize("family", FAMILIES)
def test_classifier_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = save_image_classifier(tmp_path, family)
    model = served(tmp_path)
    image = model.spec.image
    assert image is not None
    assert (model.spec.task, image.labels, image.height, image.output_name) == ("classify", LABELS, SIDE, "logits")
    with torch.inference_mode():
        expected = reference(pixel_values=same_pixels(model, family)).logits.numpy()
    assert np.ptp(expected, axis=0).min() > 1e-3, "the images differ"
    np.testing.assert_allclose(output_of(model, "logits"), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = save_image_embedder(tmp_path, family)
    model = served(tmp_path)
    with torch.inference_mode():
        expected = reference(pixel_values=same_pixels(model, family)).pooler_output.flatten(1).numpy()
    assert model.spec.task == "embed"
    assert model.spec.image is not None
    assert model.spec.image.embedding_size == expected.shape[1]
    np.testing.assert_allclose(output_of(model, "embeddings"), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_model_without_pooler_embeds_by_first_token(tmp_path: Path) -> None:
    reference = save_image_embedder(tmp_path, "vit", add_pooling_layer=False)
    model = served(tmp_path)
    with torch.inference_mode():
        expected = reference(pixel_values=same_pixels(model, "vit")).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(output_of(model, "embeddings"), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_two_towers_equal_transformers(family: str, tmp_path: Path) -> None:
    reference = save_two_towers(tmp_path, family)
    model = served(tmp_path)
    spec, tokenizer = model.spec, model.tokenizer
    assert tokenizer is not None
    assert spec.text is not None
    assert spec.image is not None
    assert spec.text.max_tokens == MAX_TOKENS
    assert spec.text.embedding_size == spec.image.embedding_size
    assert spec.text.unpadded_because is None
    with torch.inference_mode():
        images = reference.get_image_features(pixel_values=same_pixels(model, family)).pooler_output.numpy()
        ids = tokenizer.tokenize(TEXTS, truncate=True)
        longest = MAX_TOKENS if family == "siglip" else max(map(len, ids))
        padded = torch.tensor([[*each, *[0] * (longest - len(each))] for each in ids])
        mask = {} if family == "siglip" else {"attention_mask": (padded != 0).long()}
        texts = reference.get_text_features(input_ids=padded, **mask).pooler_output.numpy()
    np.testing.assert_allclose(output_of(model, "embeddings"), images, rtol=TOLERANCE, atol=TOLERANCE)
    rows = model.infer(TokenBatch(ids))[TEXT_OUTPUT]
    np.testing.assert_allclose(rows, texts, rtol=TOLERANCE, atol=TOLERANCE)  # type: ignore[arg-type]
    alone = model.infer(TokenBatch(ids[1:2]))[TEXT_OUTPUT]
    np.testing.assert_allclose(alone, texts[1:2], rtol=TOLERANCE, atol=TOLERANCE)  # type: ignore[arg-type]


def test_text_tower_changed_by_padding_runs_unpadded(tmp_path: Path) -> None:
    reference = save_two_towers(tmp_path, "clip")
    # With this end token CLIP pools the token of the largest id, which may be padding.
    reference.config.text_config.eos_token_id = reference.text_model.eos_token_id = 2
    reference.save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", pad_token="##z")
    model = served(tmp_path, instances=2)
    assert model.spec.text is not None
    assert model.spec.text.unpadded_because == "the row of a padded text differs from its single run"
    assert model.tokenizer is not None
    ids = model.tokenizer.tokenize(TEXTS, truncate=True)
    with torch.inference_mode():
        alone = [reference.get_text_features(input_ids=torch.tensor([each])).pooler_output[0].numpy() for each in ids]
    rows = model.infer(TokenBatch(ids))[TEXT_OUTPUT]
    np.testing.assert_allclose(rows, np.stack(alone), rtol=TOLERANCE, atol=TOLERANCE)  # type: ignore[arg-type]


def test_two_towers_without_tokenizer_read_images_only(tmp_path: Path) -> None:
    save_two_towers(tmp_path, "clip")
    (tmp_path / "tokenizer.json").unlink()
    model = served(tmp_path)
    assert (model.spec.text, model.tokenizer) == (None, None)
    with pytest.raises(InvalidInput, match="expected images for this model, got text"):
        model.infer(TokenBatch([[1, 2]]))


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("clip", "VisionModel"), ("clip", "VisionModelWithProjection"), ("siglip", "VisionModel")],
)
def test_image_tower_alone_equals_transformers(family: str, architecture: str, tmp_path: Path) -> None:
    reference = save_two_towers(tmp_path, family, architecture)
    model = served(tmp_path)
    with torch.inference_mode():
        output = reference(pixel_values=same_pixels(model, family))
    expected = (output.image_embeds if "Projection" in architecture else output.pooler_output).numpy()
    np.testing.assert_allclose(output_of(model, "embeddings"), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_16_bit_dtype_stays_close(tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "vit")
    exact, narrow = served(tmp_path), served(tmp_path, dtype="bf16")
    assert narrow.spec.dtype == "bfloat16"
    np.testing.assert_allclose(output_of(narrow, "logits"), output_of(exact, "logits"), atol=0.15)


@pytest.mark.extended
@pytest.mark.parametrize("family", ["vit", "dinov2", "convnext"])
def test_int8_stays_close_to_original(family: str, tmp_path: Path) -> None:
    save_image_embedder(tmp_path, family)
    entry = {"dtype": "int8", "min_cosine": 0.9, "instances": 2}
    exact, quantized = served(tmp_path), served(tmp_path, cache_dir=tmp_path / "cache", **entry)
    report = quantized.spec.quantization
    assert report is not None
    assert (quantized.spec.dtype, report.scheme) == ("int8", "int8")
    assert quantized.spec.memory_bytes < exact.spec.memory_bytes
    cosines = row_cosines(output_of(quantized, "embeddings"), output_of(exact, "embeddings"))
    assert report.cosine_min > 0.9
    assert cosines.min() > 0.9


@pytest.mark.extended
def test_int8_row_independent_of_other_images(tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "vit")
    model = served(tmp_path, dtype="int8", min_cosine=0.0, cache_dir=tmp_path / "cache")
    pixels = pixels_of(model)
    pixels[1] *= 100
    alone = model.infer(TensorBatch({"pixel_values": pixels[:1]}))["logits"]
    together = model.infer(TensorBatch({"pixel_values": pixels}))["logits"]
    assert isinstance(alone, np.ndarray)
    assert isinstance(together, np.ndarray)
    np.testing.assert_allclose(together[0], alone[0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.extended
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_int8_compares_both_towers(family: str, tmp_path: Path) -> None:
    save_two_towers(tmp_path, family)
    exact = served(tmp_path)
    quantized = served(tmp_path, dtype="int8", min_cosine=0.9, cache_dir=tmp_path / "cache")
    assert exact.tokenizer is not None
    batch = TokenBatch(exact.tokenizer.tokenize(TEXTS, truncate=True))
    wanted, found = (model.infer(batch)[TEXT_OUTPUT] for model in (exact, quantized))
    assert isinstance(wanted, np.ndarray)
    assert isinstance(found, np.ndarray)
    assert row_cosines(found, wanted).min() > 0.9


@pytest.mark.parametrize("family", ["resnet", "mobilenet_v2"])
def test_int8_of_convolutions_refused(family: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path, family)
    with pytest.raises(InvalidModel, match="dtype: expected a model of Linear layers"):
        served(tmp_path, dtype="int8", cache_dir=tmp_path / "cache")


def test_one_label_has_a_probability_of_its_own(tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "resnet", ("ant",))
    model = served(tmp_path, instances=2)
    assert model.spec.image is not None
    assert model.spec.image.multi_label


@pytest.mark.parametrize(
    ("inputs", "names", "message"),
    [
        ({"x": np.zeros((1, 3, SIDE, SIDE), np.float32)}, None, 'inputs: expected "pixel_values" in float32 alone'),
        ({"pixel_values": np.zeros((1, 3, SIDE, SIDE))}, None, "in float32 alone"),
        ({"pixel_values": np.zeros((1, 3, 8, 8), np.float32)}, None, r"expected the shape \[-1, 3, 32, 32\]"),
        ({"pixel_values": np.zeros((1, 3, SIDE, SIDE), np.float32)}, ("other",), 'outputs: expected "logits"'),
    ],
)
def test_other_tensors_refused(inputs: Any, names: Any, message: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "vit")
    with pytest.raises(InvalidInput, match=message):
        served(tmp_path).infer(TensorBatch(inputs, names))


@pytest.mark.parametrize(
    ("changes", "entry", "message"),
    [
        ({}, {"dtype": "int4"}, 'dtype: expected "int4" only for models that generate text'),
        ({}, {"kv_cache_bytes": 1000}, "kv_cache_bytes: expected only for models that generate text"),
        ({"image_processor_type": "Qwen2VLImageProcessor"}, {}, "the image processor does not run: ValueError"),
        ({"image_processor_type": "AbsentImageProcessor"}, {}, "expected one that transformers loads here, got Absent"),
        ({"size": {"height": 16, "width": 16}}, {}, "the model does not run on images"),
        ({"do_resize": False}, {}, "do_resize: expected true, or do_center_crop"),
    ],
)
def test_model_that_does_not_run_refused(changes: Any, entry: Any, message: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "vit")
    change_json(tmp_path / "preprocessor_config.json", **changes)
    with pytest.raises(InvalidModel, match=message):
        served(tmp_path, **entry)


def test_folder_without_processor_refused(tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "vit")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InvalidModel, match=r"preprocessor_config\.json: absent; a model of images needs it"):
        served(tmp_path)


def test_other_model_of_images_refused(tmp_path: Path) -> None:
    save_image_embedder(tmp_path, "vit")
    change_json(tmp_path / "config.json", architectures=["ViTForMaskedImageModeling"])
    with pytest.raises(
        InvalidModel, match=r"class that ends in ForImageClassification, .* got ViTForMaskedImageModeling"
    ):
        served(tmp_path)


def test_missing_weights_of_the_head_refused(tmp_path: Path) -> None:
    save_image_embedder(tmp_path, "vit")
    change_json(tmp_path / "config.json", architectures=["ViTForImageClassification"])
    with pytest.raises(InvalidModel, match="missing weights of ViTForImageClassification: classifier"):
        served(tmp_path)


def test_clip_module_of_sentence_transformers_served(tmp_path: Path) -> None:
    save_two_towers(tmp_path / "0_CLIPModel", "clip")
    module = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (tmp_path / "modules.json").write_bytes(orjson.dumps([module]))
    model = served(tmp_path)
    assert model.spec.image is not None
    assert model.spec.text is not None
    assert (model.spec.image.normalize, model.spec.text.normalize) == (False, False)
    check_alike(output_of(model, "embeddings"), output_of(served(tmp_path / "0_CLIPModel"), "embeddings"))
