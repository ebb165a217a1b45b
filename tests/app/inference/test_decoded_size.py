"""Estimates of decoded requests: exact for numbers, and not below what strings take."""

import sys
from typing import Any

import numpy as np
import pytest

from app.inference.decoded_size import answer_bytes, decoded_bytes
from frameworks.generation.types import GenerateRequest
from frameworks.types import EmbedAnswer, MultiVectorAnswer, PairRequest, ScoreAnswer, TensorBatch, TextRequest


def test_numbers_count_their_bytes() -> None:
    inputs: dict[str, Any] = {"x": np.zeros((10, 10)), "ids": np.zeros(5, np.int64), "absent": None}
    assert decoded_bytes(TensorBatch(inputs), 99) == 840


@pytest.mark.parametrize("text", ["ab", "a long text, which has many characters" * 9])
@pytest.mark.parametrize("count", [1, 1000])
def test_texts_count_characters_and_objects(text: str, count: int) -> None:
    texts = [text + str(i) for i in range(count)]
    received = sum(len(each) + 3 for each in texts)
    least = sum(map(sys.getsizeof, texts))
    strings = TensorBatch({"x": np.array(texts, dtype=object)})
    for request in (TextRequest(texts), PairRequest([(each, each) for each in texts]), strings):
        assert decoded_bytes(request, received) >= least


def test_sequences_and_maps_count_their_values() -> None:
    arrays: list[Any] = [np.zeros(3, np.int64) for _ in range(100)]
    received = len(str([array.tolist() for array in arrays]))
    assert decoded_bytes(TensorBatch({"x": arrays}), received) >= sum(map(sys.getsizeof, arrays))
    assert decoded_bytes(TensorBatch({"x": {"a": 1, "b": 2}}), 20) > 0


def test_answers_count_their_tensors() -> None:
    answer: dict[str, Any] = {"y": np.zeros((3, 4), np.float32), "label": np.array(["ab", "c"], dtype=object)}
    assert answer_bytes(answer) >= 48 + 2 * 51
    assert answer_bytes(EmbedAnswer(np.zeros((5, 8), np.float32), 9)) == 160
    assert answer_bytes(ScoreAnswer([0.5], 3)) == 0
    assert answer_bytes(MultiVectorAnswer([np.zeros((5, 8), np.float32)] * 2, 9)) >= 320


def test_prompt_counts_what_was_received() -> None:
    assert decoded_bytes(GenerateRequest(("a prompt",)), 100) == 100
