"""Answers of the pipeline: those of transformers 4.57, and of a search through all spans."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.pytorch.tasks.answer_spans import decode_spans, select_starts_ends
from frameworks.pytorch.tasks.question_answering import QuestionAnsweringPipeline
from frameworks.tasks.parts import MAX_READ_TOKENS
from tests.support.models.text_files import VOCABULARY_SIZE, write_tokenizer

TEXT = "The cat sat on the mat. The steam engine runs on the turntable, of steam. "
LONG = TEXT * 6
MAX_TOKENS = 40
RECORDED = Path(__file__).with_name("question_answering.json")
"""Answers of transformers 4.57.3 for the model below; `context` is given `repeated` times."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> QuestionAnsweringPipeline:
    """A small BERT of 40 tokens; its weights are drawn by numpy, so that no version of torch changes them."""
    folder = tmp_path_factory.mktemp("question_answering")
    write_tokenizer(folder, max_length=MAX_TOKENS, token_types=True)
    return QuestionAnsweringPipeline(model=_model(), tokenizer=AutoTokenizer.from_pretrained(folder))


def _model() -> BertForQuestionAnswering:
    model = BertForQuestionAnswering(
        BertConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=MAX_TOKENS,
        )
    )
    random = np.random.default_rng(5)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if "LayerNorm" not in name:
                drawn = random.standard_normal(weights.shape).astype("f4")
                weights.copy_(torch.from_numpy(drawn) * 0.3)
    return model.eval()


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text(encoding="utf-8")))
def test_pipeline_answers_as_transformers_4(
    pipeline: QuestionAnsweringPipeline, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.tokenizer, "padding_side", case["padding_side"])
    asked = {"question": case["question"], "context": case["context"] * case["repeated"]}
    answer = pipeline(asked, **case["parameters"])
    assert type(answer) is type(case["answer"])
    _assert_equal(answer, case["answer"])


def _assert_equal(answer: Any, expected: Any) -> None:
    found, recorded = (each if isinstance(each, list) else [each] for each in (answer, expected))
    assert [{**each, "score": None} for each in found] == [{**each, "score": None} for each in recorded]
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in recorded], abs=1e-5)


def test_batched_parts_answer_as_single_ones(pipeline: QuestionAnsweringPipeline) -> None:
    asked = [{"question": "the cat", "context": LONG}, {"question": "on Engine", "context": TEXT}]
    alone, together = pipeline(asked, top_k=3), pipeline(asked, top_k=3, batch_size=4)
    for one, other in zip(alone, together, strict=True):
        _assert_equal(other, one)


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_padding_of_a_batch_changes_no_answer(
    pipeline: QuestionAnsweringPipeline, padding_side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.tokenizer, "padding_side", padding_side)
    parts = list(pipeline.preprocess({"question": "the cat", "context": LONG}))
    outputs = [pipeline.forward(part) for part in parts]
    padded = [{**output, **_pad(output, padding_side)} for output in outputs]
    options: dict[str, Any] = {"top_k": 4, "handle_impossible_answer": True}
    _assert_equal(pipeline.postprocess(padded, **options), pipeline.postprocess(outputs, **options))


def _pad(output: dict[str, Any], side: str) -> dict[str, torch.Tensor]:
    fillings = {"start": 7.0, "end": 7.0, "p_mask": 1, "attention_mask": 0, "input_ids": 0}
    sides = (3, 0) if side == "left" else (0, 3)
    return {name: torch.nn.functional.pad(output[name], sides, value=value) for name, value in fillings.items()}


@pytest.mark.parametrize(
    ("question", "context", "parameters", "message"),
    [
        ("", "cat", {}, "question: expected a text, got an empty one; send one"),
        ("cat", "", {}, "context: expected a text, got an empty one; send one"),
        ("cat " * 50, "cat", {}, "question: expected less than 37 tokens, got 50; shorten it"),
        (
            "cat " * 20,
            LONG,
            {},
            "parameters.doc_stride: expected less than 17, the tokens of a text in a part, got 20; lower it",
        ),
        ("cat", LONG, {"doc_stride": 37}, "parameters.doc_stride: expected less than 37 with max_seq_len 40, got 37"),
        ("cat", LONG, {"max_seq_len": 41}, "parameters.max_seq_len: expected at most 40, got 41; lower it"),
        ("cat", "cat", {"top_k": 0}, "parameters.top_k: expected an integer of 1 or more, got 0; raise it"),
    ],
)
def test_pipeline_refuses_what_it_cannot_read(
    pipeline: QuestionAnsweringPipeline, question: str, context: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        pipeline({"question": question, "context": context}, **parameters)
    assert refused.value.message.startswith(message)


def test_context_with_too_many_parts_is_refused(pipeline: QuestionAnsweringPipeline) -> None:
    """Parts that share all but one of their tokens are as many as the tokens of the context."""
    context = "cat " * (MAX_READ_TOKENS // MAX_TOKENS + MAX_TOKENS)
    with pytest.raises(InvalidInput, match=f"context: expected parts of up to {MAX_READ_TOKENS} tokens in all"):
        next(pipeline.preprocess({"question": "cat", "context": context}, doc_stride=35))


def test_slow_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n")
    slow = BertTokenizerLegacy(str(tmp_path / "vocab.txt"))
    with pytest.raises(InvalidModel, match="expected a fast one"):
        QuestionAnsweringPipeline(model=_model(), tokenizer=slow)


@pytest.mark.parametrize("top_k", [1, 4, 30])
def test_decode_spans_equals_a_full_search(top_k: int) -> None:
    random = np.random.default_rng(top_k)
    starts, ends = (random.random((1, 24)).astype("f4") for _ in range(2))
    wanted = np.ones((1, 24), dtype=np.int64)
    first, last, scores = decode_spans(starts, ends, top_k, 5, wanted)
    spans = [(a, b) for a, b in product(range(24), repeat=2) if a <= b < a + 5]
    spans.sort(key=lambda span: -starts[0, span[0]] * ends[0, span[1]])
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == spans[:top_k]
    assert scores == pytest.approx([starts[0, a] * ends[0, b] for a, b in spans[:top_k]], rel=1e-6)


def test_select_starts_ends_drops_masked_tokens() -> None:
    logits = np.array([[1.0, 9.0, 2.0, 3.0, 9.0]], dtype="f4")
    p_mask, attention = np.array([[0, 1, 0, 0, 0]]), np.array([[1, 1, 1, 1, 0]])
    starts, ends, scores, null_score = select_starts_ends(logits, logits, p_mask, attention, top_k=1, max_answer_len=15)
    powers = np.exp([1.0, 2.0, 3.0])
    assert (starts.tolist(), ends.tolist()) == ([3], [3])
    assert scores[0] == pytest.approx((powers[2] / powers.sum()) ** 2, abs=1e-6)
    assert null_score == pytest.approx((powers[0] / powers.sum()) ** 2, abs=1e-6)
