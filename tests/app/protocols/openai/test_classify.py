"""/v1/classify and /pooling: texts of a body, and labels and vectors in a response."""

import base64

import numpy as np
import pytest

from app.protocols.openai.classify import CLASSIFY_CODEC, POOLING_CODEC
from app.protocols.openai.responses import ClassifyResponse, PoolingResponse
from frameworks.types import ClassifyAnswer, EmbedAnswer, SparseAnswer, TextRequest
from tests.app.protocols.openai.decoding import assert_refused, decode, encode

ANSWER = ClassifyAnswer([[("b", 0.75), ("a", 0.25)], [("a", 0.5), ("b", 0.5)]], 9)
USAGE = {"prompt_tokens": 9, "total_tokens": 9}


class TestClassify:
    @pytest.mark.parametrize(
        ("fields", "request_"),
        [
            ({"input": "a"}, TextRequest(["a"])),
            ({"input": ["a", "b"], "truncation": False}, TextRequest(["a", "b"], truncate=False)),
            ({"input": "a", "raw_scores": False, "use_activation": True}, TextRequest(["a"])),
            ({"input": "a", "raw_scores": True}, TextRequest(["a"], raw_scores=True)),
            ({"input": "a", "use_activation": False}, TextRequest(["a"], raw_scores=True)),
            ({"input": "a", "truncate_prompt_tokens": -1, "mm_processor_kwargs": None}, TextRequest(["a"])),
        ],
    )
    def test_body_becomes_text_request(self, fields: dict[str, object], request_: TextRequest) -> None:
        assert decode(CLASSIFY_CODEC, model="classify", **fields).request == request_

    def test_model_is_the_only_classifier(self) -> None:
        assert CLASSIFY_CODEC.unnamed.kinds == ("classify", "rerank")

    def test_response_has_form_of_vllm(self) -> None:
        body = encode(CLASSIFY_CODEC, decode(CLASSIFY_CODEC, model="classify", input=["x", "y"]), ANSWER)
        assert body == {
            "id": "classify-abc-1", "object": "list", "created": 1_700_000_000, "model": "llama", "usage": USAGE,
            "data": [
                {"index": 0, "label": "b", "probs": [0.25, 0.75], "num_classes": 2},
                {"index": 1, "label": "a", "probs": [0.5, 0.5], "num_classes": 2},
            ],
        }  # fmt: skip
        ClassifyResponse.model_validate(body, strict=True)

    def test_response_to_raw_scores_has_form_of_infinity(self) -> None:
        fields = {"model": "classify", "input": ["x", "y"], "raw_scores": False}
        body = encode(CLASSIFY_CODEC, decode(CLASSIFY_CODEC, **fields), ANSWER)
        assert (body["object"], body["usage"]) == ("classify", USAGE)
        assert body["data"] == [
            [{"score": 0.75, "label": "b"}, {"score": 0.25, "label": "a"}],
            [{"score": 0.5, "label": "a"}, {"score": 0.5, "label": "b"}],
        ]
        ClassifyResponse.model_validate(body, strict=True)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("truncate_prompt_tokens", 15), ("labels", ["x"]), ("messages", []), ("truncation_side", "middle")],
    )
    def test_other_answers_are_refused(self, field: str, value: object) -> None:
        assert_refused(CLASSIFY_CODEC, field, model="classify", input="a", **{field: value})


class TestPooling:
    @pytest.mark.parametrize(
        ("model", "fields", "request_"),
        [
            ("embed", {"task": "embed"}, TextRequest(["a"])),
            ("embed", {"use_activation": False}, TextRequest(["a"], normalize=False)),
            ("embed-two-shorter-sizes", {"dimensions": 4}, TextRequest(["a"], dimensions=4)),
            ("classify", {"task": "classify", "dimensions": 0}, TextRequest(["a"])),
            ("cross-encoder", {"use_activation": False}, TextRequest(["a"], raw_scores=True)),
        ],
    )
    def test_task_of_model_decides(self, model: str, fields: dict[str, object], request_: TextRequest) -> None:
        assert decode(POOLING_CODEC, model=model, input="a", **fields).request == request_

    @pytest.mark.parametrize("task", ["classify", "token_embed", "plugin"])
    def test_other_task_is_refused(self, task: str) -> None:
        assert_refused(POOLING_CODEC, "task", "expected", model="embed", input="a", task=task)

    def test_sparse_vectors_are_written_with_zeros(self) -> None:
        answer = SparseAnswer([np.array([3, 70], np.int32)], [np.array([0.5, 2], np.float32)], 4)
        decoded = decode(POOLING_CODEC, model="embed-sparse", input="a", task="embed")
        assert decoded.request == TextRequest(["a"], vectors=("sparse",))
        [row] = encode(POOLING_CODEC, decoded, answer)["data"]
        assert (len(row["data"]), row["data"][3], row["data"][70], sum(row["data"])) == (30_522, 0.5, 2.0, 2.5)

    def test_many_zeros_are_refused(self) -> None:
        message = "expected at most 274 texts"
        assert_refused(POOLING_CODEC, "input", message, model="embed-sparse", input=["a"] * 275)
        assert decode(POOLING_CODEC, model="embed-sparse", input=["a"] * 274).request is not None

    def test_vectors_are_written_as_asked(self) -> None:
        answer = EmbedAnswer(np.array([[0.5, -1], [2, 3]], np.float32), 9)
        fields: dict[str, object] = {"model": "embed", "input": ["x", "y"]}
        body = encode(POOLING_CODEC, decode(POOLING_CODEC, **fields), answer)
        assert [each["data"] for each in body["data"]] == [[0.5, -1], [2, 3]]
        assert (body["id"], body["usage"]) == ("pool-abc-1", USAGE)
        PoolingResponse.model_validate(body, strict=True)
        body = encode(POOLING_CODEC, decode(POOLING_CODEC, encoding_format="base64", **fields), answer)
        assert np.frombuffer(base64.b64decode(body["data"][1]["data"]), "<f4").tolist() == [2, 3]

    def test_scores_are_in_order_of_labels(self) -> None:
        body = encode(POOLING_CODEC, decode(POOLING_CODEC, model="classify", input=["x", "y"]), ANSWER)
        assert [each["data"] for each in body["data"]] == [[0.25, 0.75], [0.5, 0.5]]
