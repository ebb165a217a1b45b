"""PyTorch models of images over every protocol: labels of a ViT, and CLIP's images and texts in one space."""

import io
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor

from frameworks.types import Array
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, serving
from tests.e2e.triton_clients import grpc_tensor, http_tensor, string_array, triton_client
from tests.support.models.image_families import save_classifier
from tests.support.models.vision_folders import LABELS, save_image_classifier, save_two_towers

pytestmark = pytest.mark.extended

TOLERANCE = 2e-2
"""Resizing rounds each pixel to one of 256 values, and the random weights amplify it."""


def photo(seed: int, side: int = 48) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


FILES = [photo(seed) for seed in range(3)]


class Models:
    """The server with the models, and transformers' own."""

    def __init__(self, server: RunningServer, folder: Any, classifier: Any, towers: Any) -> None:
        self.server = server
        self.folder = folder
        self._classifier = classifier
        self._towers = towers

    def pixels(self, name: str) -> Any:
        processor = AutoImageProcessor.from_pretrained(self.folder / name)
        images = [Image.open(io.BytesIO(file)).convert("RGB") for file in FILES]
        return processor(images, return_tensors="pt")["pixel_values"]

    def probabilities(self) -> Array:
        with torch.inference_mode():
            logits = self._classifier(self.pixels("vit")).logits
        shares: Array = logits.softmax(-1).numpy()
        return shares

    def embeddings(self) -> Array:
        with torch.inference_mode():
            vision = self._towers.vision_model(self.pixels("clip"))
            vectors = self._towers.visual_projection(vision.pooler_output)
        unit: Array = torch.nn.functional.normalize(vectors, dim=-1).numpy()
        return unit

    def post(self, path: str, **request: Any) -> Any:
        response = self.server.client.post(path, **request)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module", params=["none", "process"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("torch-images")
    classifier, towers = save_image_classifier(folder / "vit", "vit"), save_two_towers(folder / "clip", "clip")
    save_classifier(folder / "siglip2", "siglip2")
    config = "".join(
        f'[[models.torch_models]]\nname = "{name}"\npath = "{folder / name}"\nisolation = "{request.param}"\n'
        for name in ("vit", "clip", "siglip2")
    )
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield Models(running.wait_ready(), folder, classifier, towers)


def text(file: bytes) -> str:
    return b64encode(file).decode()


def test_classifier_answers_as_transformers(models: Models) -> None:
    answer = models.post("/models/vit/infer", files=[("image", file) for file in FILES])
    wanted = models.probabilities()
    for labels, scores in zip(answer["predictions"], wanted, strict=True):
        found = {each["label"]: each["score"] for each in labels}
        assert np.allclose([found[label] for label in LABELS], scores, atol=TOLERANCE)
    with triton_client(models.server, "grpc") as client:
        scores = client.infer("vit", [grpc_tensor("image", np.array(FILES, dtype=object), "BYTES")]).as_numpy("scores")
    assert np.allclose(scores, wanted, atol=TOLERANCE)


def test_two_towers_embed_images_and_texts(models: Models) -> None:
    wanted = models.embeddings()
    vectors = models.post("/models/clip/infer", json={"image": [text(file) for file in FILES]})["embeddings"]
    assert np.allclose(vectors, wanted, atol=TOLERANCE)
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text(file)}"}} for file in FILES]
    messages = [{"role": "user", "content": [part]} for part in parts]
    data = models.post("/v1/embeddings", json={"model": "clip", "messages": messages})["data"]
    assert np.allclose([each["embedding"] for each in data], vectors, atol=1e-5)
    by_native = models.post("/models/clip/infer", json={"text": ["the cat", "a dog"]})["embeddings"]
    by_openai = models.post("/v1/embeddings", json={"model": "clip", "input": ["the cat", "a dog"]})["data"]
    assert np.allclose(by_native, [each["embedding"] for each in by_openai], atol=1e-5)
    assert np.array(by_native).shape == (2, wanted.shape[1])


def test_two_towers_have_two_inputs_in_open_inference(models: Models) -> None:
    server = models.server
    inputs = server.client.get("/v2/models/clip").json()["inputs"]
    assert {each["name"]: each["datatype"] for each in inputs} == {"text": "BYTES", "image": "BYTES"}
    files, texts = np.array(FILES, dtype=object), string_array("the cat")
    with triton_client(server, "http") as client:
        by_file = client.infer("clip", [http_tensor("image", files)]).as_numpy("embeddings")
        by_text = client.infer("clip", [http_tensor("text", texts)]).as_numpy("embeddings")
    assert np.allclose(by_file, models.embeddings(), atol=TOLERANCE)
    assert by_text.shape == (1, by_file.shape[1])
    both = [
        {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text(FILES[0])]},
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    ]
    refused = server.client.post("/v2/models/clip/infer", json={"inputs": both})
    assert refused.status_code == 400
    assert "expected exactly one of text and image" in refused.json()["error"]
    none = server.client.post("/models/clip/infer", json={})
    assert_refused(none, 400, "invalid_input")


def test_tensor_of_pixels_is_still_served(models: Models) -> None:
    pixels = models.pixels("vit").numpy()
    wanted = np.log(models.probabilities())
    outputs = models.post("/models/vit/infer", json={"inputs": {"pixel_values": pixels.tolist()}})["outputs"]
    flat = models.post("/models/vit/infer", json={"input_data": pixels.tolist()})
    with triton_client(models.server, "http") as client:
        logits = client.infer("vit", [http_tensor("pixel_values", pixels)]).as_numpy("logits")
    for found in (outputs["logits"]["data"], flat["output_data"], logits):
        shifted = np.array(found) - np.log(np.exp(found).sum(1, keepdims=True))
        assert np.allclose(shifted, wanted, atol=1e-3)


def test_classifier_refuses_texts_and_pairs(models: Models) -> None:
    client = models.server.client
    message = assert_refused(client.post("/models/vit/infer", json={"text": "a"}), 400, "invalid_input")
    assert message.endswith("send the field image")
    response = client.post("/v1/score", json={"model": "vit", "text_1": "a", "text_2": "b"})
    assert "expected a model that reads texts" in response.json()["error"]["message"]


def test_bad_file_is_refused_by_its_number(models: Models) -> None:
    response = models.server.client.post("/models/vit/infer", files=[("image", FILES[0]), ("image", b"no image")])
    assert assert_refused(response, 400, "invalid_input").startswith("image[1]: expected a file in JPEG")


def test_processor_of_transformers_serves_concurrent_callers(models: Models) -> None:
    files = [photo(seed, side=40 + 3 * seed) for seed in range(16)]
    pipeline = transformers.pipeline("image-classification", model=str(models.folder / "siglip2"))

    def predictions(file: bytes) -> Any:
        answer = models.post("/models/siglip2/infer", content=file, headers={"content-type": "image/png"})
        return answer["predictions"][0]

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(predictions, files))
    for file, answer in zip(files, answers, strict=True):
        expected = pipeline(Image.open(io.BytesIO(file)).convert("RGB"))
        assert [each["label"] for each in answer] == [each["label"] for each in expected]
        np.testing.assert_allclose([each["score"] for each in answer], [each["score"] for each in expected], atol=1e-4)
