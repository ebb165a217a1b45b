"""Images in `messages` of /v1/embeddings, /v1/classify and /pooling."""

import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from app.protocols.openai.classify import CLASSIFY_CODEC, POOLING_CODEC
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.openai.scoring import SCORE_CODEC
from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.codec import Target
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.types import ModelSpec, TextRequest, TextSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS

VECTORS, LABELS = SPECS["photo-vectors"], SPECS["photos"]
BOTH = replace(VECTORS, text=TextSpec(16))
"""A model with two towers: images and texts in one space."""
URL = "data:image/jpeg;base64," + b64encode(b"file").decode()


def part(url: str = URL, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def request(codec: BodyCodec, spec: ModelSpec, *parts: dict[str, Any], **fields: Any) -> Any:
    body = {"model": "m", **fields}
    if parts:
        body["messages"] = [{"role": "user", "content": list(parts)}]
    return decode_body(codec, json.dumps(body).encode(), Target(), lambda *_: spec).request


def refusal(codec: BodyCodec, spec: ModelSpec, *parts: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        request(codec, spec, *parts, **fields)
    return caught.value.message


def test_images_of_messages_are_one_request() -> None:
    assert request(EMBEDDINGS_CODEC, VECTORS, part()) == ImageRequest([b"file"])
    assert request(EMBEDDINGS_CODEC, VECTORS, part(detail="auto"), part(), normalize=False) == ImageRequest(
        [b"file"] * 2, normalize=False
    )
    assert request(EMBEDDINGS_CODEC, VECTORS, part(), {"type": "text", "text": ""}) == ImageRequest([b"file"])
    assert request(CLASSIFY_CODEC, LABELS, part(), use_activation=False) == ImageRequest([b"file"], raw_scores=True)
    assert request(POOLING_CODEC, LABELS, part()) == ImageRequest([b"file"])
    assert request(POOLING_CODEC, VECTORS, part(), dimensions=8) == ImageRequest([b"file"])


def test_model_with_two_towers_reads_either() -> None:
    assert request(EMBEDDINGS_CODEC, BOTH, part()) == ImageRequest([b"file"])
    assert request(EMBEDDINGS_CODEC, BOTH, input="a") == TextRequest(["a"])


@pytest.mark.parametrize("given", [URL, b64encode(b"file").decode(), [URL]])
def test_modality_reads_images_of_input(given: Any) -> None:
    assert request(EMBEDDINGS_CODEC, BOTH, input=given, modality="image") == ImageRequest([b"file"])
    assert request(EMBEDDINGS_CODEC, BOTH, part(), modality="image") == ImageRequest([b"file"])
    assert request(EMBEDDINGS_CODEC, BOTH, input="a", modality="text") == TextRequest(["a"])


@pytest.mark.parametrize(
    ("spec", "parts", "fields", "message"),
    [
        (
            VECTORS,
            [],
            {"modality": "image", "input": ["https://a.org/a.jpg"]},
            "input[0]: expected base64 or a data URL",
        ),
        (VECTORS, [], {"modality": "image", "input": [URL, [1]]}, "input"),
        (VECTORS, [], {"modality": "image", "input": [1, 2]}, "input[0]: expected an image as base64 or data URL"),
        (VECTORS, [], {"modality": "image", "input": [URL] * 257}, "input: expected 1 to 256 images, got 257"),
        (VECTORS, [], {"modality": "image"}, "input: expected an image or a list of images, got nothing"),
        (VECTORS, [], {"modality": "audio", "input": URL}, "modality: expected"),
        (VECTORS, [], {"modality": "text", "input": "a"}, "input: expected a model that reads texts, got another"),
        (SPECS["embed"], [], {"modality": "image", "input": URL}, "modality: expected a model that reads images"),
        (VECTORS, [part("https://a.org/a.jpg")], {}, "messages[0].content[0].image_url.url: expected base64 or a data"),
        (VECTORS, [part(), {"type": "text", "text": "a"}], {}, "messages[0].content[1]: expected an image, got a text"),
        (VECTORS, [{"type": "text", "text": ""}], {}, "messages: expected 1 to 256 images, got 0"),
        (VECTORS, [{"type": "input_audio"}], {}, "messages[0].content[0].type: expected"),
        (VECTORS, [part()] * 257, {}, "messages: expected 1 to 256 images, got 257"),
        (VECTORS, [part()], {"input": "a"}, "messages: expected either input or messages, got both"),
        (VECTORS, [part()], {"dimensions": 4}, "dimensions: expected 8, the size of this model's vectors, got 4"),
        (VECTORS, [], {}, "input: expected a text or a list of texts, got nothing; or send messages with images"),
        (VECTORS, [], {"input": "a"}, "input: expected a model that reads texts, got another"),
        (SPECS["embed"], [part()], {}, "messages: expected a model that reads images, got another"),
    ],
)
def test_other_content_is_refused(spec: ModelSpec, parts: list[Any], fields: dict[str, Any], message: str) -> None:
    assert refusal(EMBEDDINGS_CODEC, spec, *parts, **fields).startswith(message)


def test_route_for_texts_refuses_image_model() -> None:
    message = refusal(SCORE_CODEC, VECTORS, text_1="a", text_2="b")
    assert message.startswith("model: expected a model that reads texts, got one that reads images; send images to")
