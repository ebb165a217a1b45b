"""Cohere's /v2/embed and /v2/rerank: texts of a body, and vectors and scores in a response."""

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from app.protocols.shared.codec import Target
from app.protocols.shared.errors import to_http
from extensions.clients.cohere.codec import EMBED_CODEC, RERANK_CODEC
from extensions.clients.cohere.routes import CohereEmbedResponse, CohereErrorResponse, CohereRerankResponse
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.types import EmbedAnswer, PairRequest, ScoreAnswer, TextRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS
from tests.app.protocols.openai.decoding import assert_refused, decode, encode
from tests.support.images import encoded

ROWS = np.array([[0.5, -1, 0, 3, -0.1, -2, -3, 4], [-1] * 8], np.float32)
FILE = encoded(np.zeros((2, 3, 3), np.uint8), "JPEG")
URL = "data:image/jpeg;base64," + base64.b64encode(FILE).decode()
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
TEXT = {"type": "text", "text": "a"}
VECTORS = SPECS["photo-vectors"]
RANKED = {"query": "q", "documents": ["a", "b", "c"]}


class TestEmbed:
    @pytest.mark.parametrize(
        ("fields", "request_"),
        [
            ({"texts": ["a", "b"], "input_type": "search_query"}, TextRequest(["a", "b"])),
            ({"texts": ["a"], "truncate": "NONE", "images": None}, TextRequest(["a"], truncate=False)),
            ({"texts": ["a"], "truncate": None, "max_tokens": 16, "output_dimension": 8}, TextRequest(["a"])),
            ({"texts": ["a"], "truncate": "END"}, TextRequest(["a"], truncate="right")),
            ({"texts": ["a"], "truncate": "START"}, TextRequest(["a"], truncate="left")),
            (
                {"inputs": [{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
                TextRequest(["a\nb"]),
            ),
        ],
    )
    def test_body_becomes_text_request(self, fields: dict[str, object], request_: TextRequest) -> None:
        assert decode(EMBED_CODEC, **fields).request == request_

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({}, "texts"),
            ({"texts": []}, "texts"),
            ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs"),
            ({"inputs": [{"content": [IMAGE]}]}, "inputs"),
            ({"inputs": [{"content": [{"type": "audio"}]}]}, "inputs[0].content[0].type"),
            ({"images": [URL]}, "images"),
            ({"texts": ["a"], "images": [URL]}, "images"),
            ({"images": []}, "images"),
            ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types[0]"),
            ({"texts": ["a"], "input_type": "image"}, "input_type"),
            ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
            ({"texts": ["a"], "max_tokens": 15}, "max_tokens"),
            ({"texts": ["a"], "output_dimension": 4}, "output_dimension"),
        ],
    )
    def test_other_requests_are_refused(self, fields: dict[str, object], field: str) -> None:
        error_field = "dimensions" if field == "output_dimension" else field
        assert_refused(EMBED_CODEC, error_field, **fields)

    @pytest.mark.parametrize("form", [{"images": [URL] * 2}, {"inputs": [{"content": [IMAGE]}] * 2}])
    def test_images_become_image_request(self, form: dict[str, Any]) -> None:
        body = orjson.dumps({"model": "m", "input_type": "image", "output_dimension": 8, **form})
        decoded = decode_body(EMBED_CODEC, body, Target(), lambda *_: VECTORS)
        assert decoded.request == ImageRequest([FILE] * 2)
        assert EMBED_CODEC.is_long_to_write(decoded, EmbedAnswer(ROWS, 0)), "headers are not read in the event loop"
        written = encode(EMBED_CODEC, decoded, EmbedAnswer(ROWS, 0))
        assert (written["texts"], written["meta"]["billed_units"]) == ([], {"images": 2})
        assert written["images"] == [{"width": 3, "height": 2, "format": "jpeg", "bit_depth": 24}] * 2
        assert np.array_equal(np.array(written["embeddings"]["float"], np.float32), ROWS)
        CohereEmbedResponse.model_validate(written, strict=True)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"images": ["https://a.org/a.jpg"]}, "images[0]: expected base64 or a data URL"),
            ({"images": [URL] * 257}, "images: expected"),
            ({"images": [URL], "output_dimension": 4}, "dimensions: expected 8"),
            ({"inputs": [{"content": [IMAGE, IMAGE]}]}, "inputs[0].content: expected one image in each input"),
            ({"inputs": [{"content": [IMAGE]}, {"content": [TEXT]}]}, "inputs[1].content: expected one image"),
            ({"texts": ["a"]}, "texts: expected a model that reads texts"),
        ],
    )
    def test_other_images_are_refused(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            decode_body(EMBED_CODEC, orjson.dumps({"model": "m", **fields}), Target(), lambda *_: VECTORS)
        assert message in caught.value.message

    def test_error_of_image_names_its_field(self) -> None:
        error = EMBED_CODEC.renamed(to_http(InvalidInput("image[1]", "expected a whole image file")))
        assert error.message.startswith("images[1]: ")

    @pytest.mark.parametrize(
        ("input_type", "prompt"),
        [
            ("search_query", "q: "),
            ("search_document", "p: "),
            ("clustering", "c: "),
            ("classification", None),
            (None, None),
        ],
    )
    def test_prompt_of_type_is_used(self, input_type: str | None, prompt: str | None) -> None:
        fields: dict[str, Any] = {"texts": ["a"], "input_type": input_type}
        assert decode(EMBED_CODEC, model="embed-prompts", **fields).request == TextRequest(["a"], prompt=prompt)
        assert decode(EMBED_CODEC, model="embed", **fields).request == TextRequest(["a"])

    def test_type_chooses_side_of_model(self) -> None:
        for input_type in ("search_query", "search_document", "clustering", None):
            request = decode(EMBED_CODEC, model="embed-sides", texts=["a"], input_type=input_type).request
            assert request.are_queries is (input_type == "search_query")

    def test_bits_need_whole_bytes(self) -> None:
        fields: dict[str, Any] = {"model": "embed-any-shorter-size", "texts": ["a"], "embedding_types": ["ubinary"]}
        assert_refused(EMBED_CODEC, "embedding_types", "multiple of 8", **fields, output_dimension=7)
        assert decode(EMBED_CODEC, **fields, output_dimension=16).request.dimensions == 16

    def test_response_has_each_form(self) -> None:
        decoded = decode(EMBED_CODEC, texts=["a", "b"], embedding_types=["float", "base64", "binary", "ubinary"])
        body = encode(EMBED_CODEC, decoded, EmbedAnswer(ROWS, 9))
        assert (body["id"], body["texts"], body["response_type"]) == ("abc-1", ["a", "b"], "embeddings_by_type")
        assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}}
        forms = body["embeddings"]
        assert np.array_equal(np.array(forms["float"], np.float32), ROWS)
        assert np.array_equal(np.frombuffer(base64.b64decode(forms["base64"][0]), "<f4"), ROWS[0])
        # The signs 1011 0001, and none.
        assert forms["ubinary"] == [[0b10110001], [0]]
        assert forms["binary"] == [[0b10110001 - 128], [-128]]
        CohereEmbedResponse.model_validate(body, strict=True)

    def test_vectors_are_numbers_by_default(self) -> None:
        body = encode(EMBED_CODEC, decode(EMBED_CODEC, texts=["a"]), EmbedAnswer(ROWS[:1], 4))
        assert body["embeddings"].keys() == {"float"}


class TestRerank:
    def test_documents_are_ranked(self) -> None:
        decoded = decode(RERANK_CODEC, **RANKED, top_n=2, max_tokens_per_doc=4096, priority=0, relevant_spans=None)
        assert decoded.request == PairRequest([("q", "a"), ("q", "b"), ("q", "c")])
        assert decoded.spec is decode(RERANK_CODEC, **RANKED, model="cross-encoder").spec
        body = encode(RERANK_CODEC, decoded, ScoreAnswer([0.25, 0.75, 0.5], 9))
        assert body["results"] == [{"index": 1, "relevance_score": 0.75}, {"index": 2, "relevance_score": 0.5}]
        assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        assert (body["id"], body["usage"]) == ("abc-1", {"prompt_tokens": 9, "total_tokens": 9})
        CohereRerankResponse.model_validate(body, strict=True)

    def test_documents_are_returned_on_request(self) -> None:
        body = encode(RERANK_CODEC, decode(RERANK_CODEC, **RANKED, return_documents=True), ScoreAnswer([0, 1, 0], 9))
        assert body["results"][0] == {"index": 1, "relevance_score": 1.0, "document": {"text": "b"}}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("query", None),
            ("documents", "a"),
            ("documents", ["a", 1]),
            ("max_tokens_per_doc", 3),
            ("relevant_spans", {}),
            ("rank_fields", ["a"]),
            ("priority", 10),
        ],
    )
    def test_other_requests_are_refused(self, field: str, value: object) -> None:
        where = "documents[1]" if isinstance(value, list) and field == "documents" else field
        assert_refused(RERANK_CODEC, where, **{**RANKED, field: value})


def test_error_has_id_and_message() -> None:
    body = orjson.loads(RERANK_CODEC.error_body(to_http(InvalidInput("pairs[2][1]", "is 3")), "abc-1"))
    assert body == {"id": "abc-1", "message": "documents[2]: is 3"}
    CohereErrorResponse.model_validate(body, strict=True)
    body = orjson.loads(EMBED_CODEC.error_body(to_http(InvalidInput("text[2]", "is 3")), "abc-1"))
    assert body["message"] == "texts[2]: is 3"
