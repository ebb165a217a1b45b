"""ONNX graphs that read images: what the entry and the files beside the graph declare."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from onnx import helper

from frameworks.core.errors import InvalidModel
from frameworks.images.spec import ImageSpec
from frameworks.onnx.model import OnnxModel
from frameworks.text.pooling import scores
from frameworks.types import TensorBatch
from tests.frameworks.models.loading import load_onnx
from tests.support.images import encoded, photo
from tests.support.models import onnx_graphs
from tests.support.models.onnx_images import pooled, reference
from tests.support.models.text_files import write_tokenizer

VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
GENERIC = tuple(f"LABEL_{number}" for number in range(4))
LABELS = ("ant", "bee", "cat", "dog")


def folder_of(
    path: Path, graph: Any, processor: dict[str, Any] | None = VIT, config: Any = None, labels: str = ""
) -> Path:
    onnx_graphs.save(graph, path)
    if processor is not None:
        (path / "preprocessor_config.json").write_bytes(orjson.dumps(processor))
    if config is not None:
        (path / "config.json").write_bytes(orjson.dumps(config))
    if labels:
        (path / "labels.txt").write_text(labels)
    return path


def served(path: Path, **entry: Any) -> OnnxModel:
    model = load_onnx(path, **entry)
    assert isinstance(model, OnnxModel)
    model.warm_up()
    return model


def image_of(model: OnnxModel) -> ImageSpec:
    assert model.spec.image is not None
    return model.spec.image


def id2label(*labels: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels))} | {"architectures": ["ViTForImageClassification"]}


def json_keys(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"id2label": {str(key): value for key, value in config["id2label"].items()}}


def test_classifier_declared_by_its_folder(tmp_path: Path) -> None:
    model = served(folder_of(tmp_path, pooled(), config=json_keys(id2label(*LABELS))))
    assert model.spec.task == "classify"
    assert image_of(model) == ImageSpec("pixels", 16, 16, LABELS, output_name="logits")
    assert model.spec.batched_inputs == {"pixels"}
    rows = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(model.infer(TensorBatch({"pixels": rows}))["logits"], reference(rows), atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "config", "labels", "task", "found"),
    [
        ("image_embeds", None, "", "embed", ()),
        ("logits", None, "", "tensor", ()),
        ("scores", None, "ant\nbee\ncat\ndog\n", "classify", LABELS),
        ("image_embeds", None, "ant\nbee\ncat\ndog\n", "embed", ()),
        ("logits", {"architectures": ["ResNetForImageClassification"]}, "", "classify", GENERIC),
        ("logits", json_keys(id2label("a", "b")), "", "classify", GENERIC),
    ],
)  # fmt: skip
def test_task_found_by_output_and_labels(
    output: str, config: Any, labels: str, task: str, found: Any, tmp_path: Path
) -> None:
    model = served(folder_of(tmp_path, pooled(output=output), config=config, labels=labels))
    assert model.spec.task == task
    assert image_of(model).labels == found
    assert image_of(model).output_name == ("" if task == "tensor" else output)
    assert image_of(model).embedding_size == (4 if task == "embed" else None)


def test_hidden_states_pooled_by_their_first(tmp_path: Path) -> None:
    graph = onnx_graphs.model_of(
        [helper.make_node("Flatten", ["pixels"], ["flat"]),
         helper.make_node("Unsqueeze", ["flat", "axis"], ["last_hidden_state"])],
        [("pixels", "float32", ("n", 3, 2, 2))], [("last_hidden_state", "float32", ("n", 1, 12))],
        {"axis": np.array([1])},
    )  # fmt: skip
    model = served(folder_of(tmp_path, graph, VIT | {"size": {"height": 2, "width": 2}}))
    assert (model.spec.task, image_of(model).pooling, image_of(model).embedding_size) == ("embed", "cls", 12)


@pytest.mark.parametrize(
    ("activation", "expected"), [(None, False), ("Softmax", True), ("Sigmoid", True), ("Relu", False)]
)
def test_probabilities_found_in_the_graph(activation: str | None, expected: bool, tmp_path: Path) -> None:
    model = served(folder_of(tmp_path, pooled(activation=activation), labels="a\nb\nc\nd"))
    assert image_of(model).gives_probabilities is expected


def test_table_replaces_the_file(tmp_path: Path) -> None:
    path = folder_of(tmp_path, pooled(("n", 3, "h", "w"), "out"), {"image_processor_type": "Unknown"})
    table = {"size": 20, "resize": "shortest_edge", "crop": [12, 10], "labels": LABELS, "mean": [0.5, 0.5, 0.5]}
    model = served(path, image=table)
    assert (image_of(model).height, image_of(model).width, image_of(model).labels) == (12, 10, LABELS)
    assert model.spec.batched_inputs == {"pixels"}
    assert model.image_processor is not None
    assert model.image_processor.preparation.mean == (0.5, 0.5, 0.5)
    assert model.spec.unwarmed_because is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layout_and_dtype_read_from_the_graph(dtype: str, layout: str, tmp_path: Path) -> None:
    shape = ("n", 3, 8, 6) if layout == "nchw" else ("n", 8, 6, 3)
    path = folder_of(tmp_path, pooled(shape, "out", dtype, layout=layout), None)
    model = served(path, image={"channel_order": "bgr"})
    processor = model.image_processor
    assert processor is not None
    rows = processor.empty(1)
    data = encoded(photo(8, 6), "PNG")
    processor.read(data, processor.check(data, "image"), "image", rows[0])
    scale = 1.0 if dtype == "uint8" else 1 / 255
    pixels = photo(8, 6)[None, :, :, ::-1].transpose(0, 3, 1, 2) * scale
    tolerance = 1e-2 if dtype == "float16" else 1e-4
    output = model.infer(TensorBatch({"pixels": rows}))["out"]
    np.testing.assert_allclose(output, reference(pixels), rtol=tolerance, atol=tolerance)  # type: ignore[arg-type]


def test_files_that_do_not_fit_leave_tensors(tmp_path: Path) -> None:
    model = served(folder_of(tmp_path, pooled(), {"image_processor_type": "DetrImageProcessor"}))
    assert (model.spec.task, model.spec.image, model.image_processor) == ("tensor", None, None)


@pytest.mark.parametrize(
    ("shape", "table", "message"),
    [
        (("n", 3, 16, 16), {"size": 8}, "expected prepared images of 16 x 16 .* got 8 x 8"),
        (("n", 3, "h", "w"), {}, "image.size: expected a size"),
        (("n", 3, "h", "w"), {"resize": "shortest_edge", "size": 8}, "image.crop: expected a size"),
        ((2, 3, 16, 16), {}, "image: expected a graph with one required input"),
        (("n", 3, 16, 16), {"labels": ("a", "b")}, "image.labels: expected 4 labels"),
        (("n", 3, 16, 16), {"labels": "absent.txt"}, "absent.txt: cannot be read"),
    ],
)  # fmt: skip
def test_table_that_does_not_fit_refused(shape: Any, table: Any, message: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path, pooled(shape), None)
    with pytest.raises(InvalidModel, match=message):
        load_onnx(path, image=table)


def test_empty_line_of_labels_refused(tmp_path: Path) -> None:
    path = folder_of(tmp_path, pooled(), None, labels="a\n\nb\nc")
    with pytest.raises(InvalidModel, match="expected a label in each line"):
        load_onnx(path, image={"labels": "labels.txt"})


def test_tokenizer_beside_a_graph_of_images_ignored(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    model = served(folder_of(tmp_path, pooled(output="image_embeds")))
    assert (model.spec.task, model.spec.text, model.tokenizer) == ("embed", None, None)


def test_quantized_copy_reads_images(tmp_path: Path) -> None:
    path = folder_of(tmp_path, pooled(), labels="ant\nbee\ncat\ndog\n")
    model = served(path, quantized=True, cache_dir=tmp_path / "cache", min_cosine=0.5)
    assert model.spec.quantization is not None
    assert image_of(model).labels == LABELS


def test_graph_with_processor_of_transformers_equals_pipeline(tmp_path: Path) -> None:
    import torch
    import transformers

    from tests.support.models import image_families

    original = image_families.save_classifier(tmp_path / "torch", "beit")
    folder = tmp_path / "graph"
    folder.mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((tmp_path / "torch" / name).read_bytes())

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = original

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(pixel_values=pixel_values).logits
            return logits

    pixels = torch.zeros(2, 3, image_families.SIDE, image_families.SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits().eval().requires_grad_(False),
            (pixels,),
            folder / "model.onnx",
            input_names=["pixel_values"],
            output_names=["logits"],
            dynamic_axes={"pixel_values": {0: "n"}, "logits": {0: "n"}},
            dynamo=False,
        )
    model = served(folder)
    assert (model.spec.task, image_of(model).labels) == ("classify", image_families.LABELS)
    images = list(image_families.noise(3))
    assert model.image_processor is not None
    rows = model.image_processor.empty(len(images))
    for image, row in zip(images, rows, strict=True):
        model.image_processor.prepare(image, "image", row)
    found = scores(np.asarray(model.infer(TensorBatch({"pixel_values": rows}))["logits"]), False)
    pipeline = transformers.pipeline("image-classification", model=str(tmp_path / "torch"))
    for image, row in zip(images, found, strict=True):
        expected = {each["label"]: each["score"] for each in pipeline(image)}
        np.testing.assert_allclose(row, [expected[label] for label in image_families.LABELS], atol=1e-4)


def test_graph_with_processor_of_patches_leaves_tensors(tmp_path: Path) -> None:
    processor = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 16}
    model = served(folder_of(tmp_path, pooled(), processor))
    assert (model.spec.task, model.spec.image) == ("tensor", None)
