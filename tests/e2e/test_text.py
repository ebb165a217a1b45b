"""Text models: embeddings equal those of sentence-transformers, classifiers rank labels, options have effect."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.types import Array
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, assert_refused
from tests.support.models.onnx_graphs import session

EMBEDDERS = ("minilm", "minilm-onnx")
CLASSIFIERS = ("classify", "classify-many", "classify-onnx")
VOCABULARY = (
    "engine turntable steam shed rails coal whistle boiler tender signal platform driver wheel axle piston the a of "
    "Straße naïve façade Ελλάδα поезд 机车 機関車 기차 قطار רכבת รถไฟ ट्रेन 🚂 🛤️ 👩‍🔧 e\u0301 ﬁ ½ ² ‰ — “quoted” don't"
)
WORDS = VOCABULARY.split()
ODD_TEXTS = (
    "", " ", "\t\n\r", "\u0000", "\u0007\u001b[31m", "\u200b", "\u2028\u2029", "\ufeff", "\ufffd", "\U0010ffff", ".",
    "[CLS] [SEP] [MASK] [PAD] [UNK]", "a" * 1000, "漢" * 600, "🚂" * 300, "word " * 1000, "\n".join("line" * 30),
    "1234567890" * 50, "http://example.com/a?b=c&d=[e]", '{"json": ["in", "a", "text"]}', "ALL CAPS", "ß" * 50,
)  # fmt: skip


def varied_texts(count: int) -> list[str]:
    """Return texts of which most are short; a few are far longer than the model's 256 tokens."""
    chance = random.Random(4)
    texts = list(ODD_TEXTS)
    while len(texts) < count:
        length = chance.choice((1, 2, 3, 5, 8, 13, 21)) if len(texts) % 100 else 400
        texts.append(" ".join(chance.choices(WORDS, k=length)))
    chance.shuffle(texts)
    return texts


COUNT = 200
TEXTS = varied_texts(COUNT)


@pytest.fixture(scope="module")
def reference() -> Array:
    """Return sentence-transformers' own embeddings of TEXTS, before it normalises them."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(MODELS / "minilm"), device="cpu", local_files_only=True)
    model = SentenceTransformer(modules=[module for module in model if type(module).__name__ != "Normalize"])
    vectors: Array = model.encode(TEXTS, batch_size=16, show_progress_bar=False)
    return vectors


def normalized(vectors: Array) -> Array:
    lengths: Array = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / lengths
    return unit


@pytest.mark.parametrize("model", EMBEDDERS)
def test_embeddings_equal_sentence_transformers(model: str, server: RunningServer, reference: Array) -> None:
    answer = server.infer(model, text=TEXTS)
    assert answer.keys() == {"model_name", "version", "latency_ms", "embeddings", "tokens"}
    embeddings = np.array(answer["embeddings"])
    assert embeddings.shape == (COUNT, 384)
    assert np.abs(embeddings - normalized(reference)).max() < 1e-4
    assert np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() < 1e-5


@pytest.mark.parametrize("model", EMBEDDERS)
def test_embeddings_normalised_only_on_request(model: str, server: RunningServer, reference: Array) -> None:
    some = TEXTS[:30]
    raw = np.array(server.infer(model, text=some, normalize=False)["embeddings"])
    assert np.abs(raw - reference[:30]).max() < 1e-4
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    asked = np.array(server.infer(model, text=some[:3], normalize=True)["embeddings"])
    assert np.abs(asked - normalized(reference[:3])).max() < 1e-4


@pytest.mark.parametrize("model", EMBEDDERS)
def test_single_text_equals_batched_text(model: str, server: RunningServer, reference: Array) -> None:
    for position in (0, 7, COUNT // 2, COUNT - 1):
        alone = np.array(server.infer(model, text=TEXTS[position])["embeddings"])
        assert alone.shape == (1, 384)
        assert np.abs(alone - normalized(reference[position : position + 1])).max() < 1e-4
        in_a_list = server.infer(model, text=[TEXTS[position]])["embeddings"]
        assert np.abs(alone - np.array(in_a_list)).max() < 1e-6


@pytest.mark.parametrize("model", EMBEDDERS)
def test_token_count_includes_special_tokens(model: str, server: RunningServer) -> None:
    assert server.infer(model, text="")["tokens"] == 2
    assert server.infer(model, text=["hello", "hello world", ""])["tokens"] == 3 + 4 + 2
    assert server.infer(model, text="hello " * 1000)["tokens"] == 256
    assert server.infer(model, text=[])["tokens"] == 0


@pytest.mark.parametrize("model", EMBEDDERS)
def test_long_text_truncated_unless_forbidden(model: str, server: RunningServer) -> None:
    exact, over = "hello " * 254, "hello " * 255
    cut = server.infer(model, text=over)["embeddings"]
    assert cut == server.infer(model, text=over, truncate=True)["embeddings"]
    assert np.abs(np.array(cut) - server.infer(model, text=exact, truncate=False)["embeddings"]).max() < 1e-6
    for texts, position in ((over, 0), (["a", "b", over], 2)):
        answer = server.client.post(f"/models/{model}/infer", json={"text": texts, "truncate": False})
        assert_refused(answer, 400, "invalid_input", f"text[{position}]: expected at most 256 tokens, got 257")
    assert server.infer(model, text=over)["embeddings"] == cut


@pytest.mark.parametrize(("model", "count"), [("minilm-onnx", 1000), ("minilm", 300)])
def test_many_texts_keep_order(model: str, count: int, server: RunningServer) -> None:
    texts = [WORDS[i % 7] if i % 2 else f"{WORDS[i % 7]} and {WORDS[i % 5]}" for i in range(count)]
    embeddings = np.array(server.infer(model, text=texts)["embeddings"])
    assert embeddings.shape == (count, 384)
    different = sorted(set(texts))
    by_text = dict(zip(different, server.infer(model, text=different)["embeddings"], strict=True))
    assert np.abs(embeddings - np.array([by_text[text] for text in texts])).max() < 1e-5


def test_too_many_texts_refused(server: RunningServer) -> None:
    answer = server.client.post("/models/minilm-onnx/infer", json={"text": [""] * 100_001})
    assert_refused(answer, 400, "invalid_input", "text: expected at most 100000 texts, got 100001")


@pytest.mark.parametrize("model", [*EMBEDDERS, *CLASSIFIERS])
def test_empty_list_of_texts_returns_no_rows(model: str, server: RunningServer) -> None:
    answer = server.infer(model, text=[])
    assert answer["embeddings" if model in EMBEDDERS else "predictions"] == []


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_classifier_ranks_labels(model: str, server: RunningServer) -> None:
    texts = ["the cat sat", "", "engine of steam runs", "the cat sat"]
    answer = server.infer(model, text=texts)
    assert answer.keys() == {"model_name", "version", "latency_ms", "predictions"}
    predictions = answer["predictions"]
    assert len(predictions) == 4
    for first, again in zip(predictions[0], predictions[3], strict=True):
        assert first == pytest.approx(again, abs=1e-6)
    for labels in predictions:
        scores = [label["score"] for label in labels]
        assert {label["label"] for label in labels} == {"fast", "slow", "late"}
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score < 1 for score in scores)
        if model != "classify-many":
            assert sum(scores) == pytest.approx(1)
    (single,) = server.infer(model, text="the cat sat")["predictions"]
    assert [label["label"] for label in single] == [label["label"] for label in predictions[0]]


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_top_k_labels(model: str, server: RunningServer) -> None:
    (ranked,) = server.infer(model, text="engine of steam")["predictions"]
    for top_k in (1, 2, 3, 4, 1000):
        (best,) = server.infer(model, text="engine of steam", top_k=top_k)["predictions"]
        assert best == ranked[:top_k]


def test_scores_equal_transformers(server: RunningServer) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = ["the cat sat on the mat", "steam", "engine of the turntable runs ."]
    for name in ("classify", "classify-many"):
        (detail,) = server.client.get(f"/models/{name}").json()["version_details"].values()
        model = AutoModelForSequenceClassification.from_pretrained(detail["path"])
        tokens = AutoTokenizer.from_pretrained(detail["path"])(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            logits = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
        wanted = (logits.softmax(1) if name == "classify" else logits.sigmoid()).tolist()
        for row, labels in zip(wanted, server.infer(name, text=texts)["predictions"], strict=True):
            scores = {label["label"]: label["score"] for label in labels}
            assert [scores[label] for label in ("fast", "slow", "late")] == pytest.approx(row, abs=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("labels", [("reward",), ("mass", "age")])
def test_regression_equals_pipeline(labels: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    from transformers import pipeline

    from tests.support.models.torch_folders import save_classifier

    folder = save_classifier(tmp_path / "values", labels=labels, problem_type="regression")
    texts = ["the cat sat on the mat", "the", "cat sat on mat ."]
    wanted = pipeline("text-classification", str(folder), device="cpu", top_k=None)(texts)
    server = start(f'[[models.torch_models]]\nname = "values"\npath = "{folder}"\n').wait_ready()
    for found, expected in zip(server.infer("values", text=texts)["predictions"], wanted, strict=True):
        assert [each["label"] for each in found] == [each["label"] for each in expected]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_entry_offers_shorter_embeddings(isolation: str, start: Start, reference: Array) -> None:
    entry = f'name = "minilm"\npath = "{MODELS / "minilm"}"\ndimensions = [64, 128]\nisolation = "{isolation}"\n'
    server = start(f"[[models.torch_models]]\n{entry}").wait_ready()
    body = {"model": "minilm", "input": TEXTS[:3], "dimensions": 64}
    answer = server.client.post("/v1/embeddings", json=body).json()
    found = np.array([each["embedding"] for each in answer["data"]])
    np.testing.assert_allclose(found, normalized(reference[:3, :64]), atol=1e-4)
    refused = server.client.post("/v1/embeddings", json=body | {"dimensions": 65})
    assert refused.status_code == 400
    assert "expected one of 64, 128, 384, got 65" in refused.json()["error"]["message"]


def test_onnx_scores_equal_onnxruntime(server: RunningServer) -> None:
    (detail,) = server.client.get("/models/classify-onnx").json()["version_details"].values()
    ids = np.array([[2, 5, 6, 7, 3]])  # [CLS] the cat sat [SEP]
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    (logits,) = session(Path(detail["path"]) / "model.onnx").run(["logits"], feeds)
    wanted = np.exp(logits[0]) / np.exp(logits[0]).sum()
    (labels,) = server.infer("classify-onnx", text="the cat sat")["predictions"]
    scores = {label["label"]: label["score"] for label in labels}
    assert [scores[label] for label in ("fast", "slow", "late")] == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        ("minilm", {"text": "a", "top_k": 1}, "top_k: expected a model of task classify, got embed"),
        ("minilm-onnx", {"text": "a", "top_k": 1}, "top_k: expected a model of task classify"),
        ("classify", {"text": "a", "normalize": True}, "normalize: expected a model of task embed"),
        ("classify-onnx", {"text": "a", "normalize": False}, "normalize: expected a model of task embed"),
        ("minilm", {"text": "a", "normalize": 1}, "normalize: expected a boolean, got a number"),
        ("minilm", {"text": "a", "normalize": None}, "normalize: expected a boolean, got null"),
        ("minilm", {"text": "a", "truncate": "yes"}, "truncate: expected a boolean, got a string"),
        ("classify", {"text": "a", "top_k": 0}, "top_k: expected an integer of 1 or more, got 0"),
        ("classify", {"text": "a", "top_k": 1.5}, "top_k: expected an integer of 1 or more, got 1.5"),
        ("classify", {"text": "a", "top_k": True}, "top_k: expected an integer of 1 or more, got a boolean"),
        ("minilm", {"text": "a", "outputs": ["x"]}, "outputs: expected an option of text"),
        ("minilm", {"text": "a", "batch_size": 1}, "batch_size: expected an option of text"),
        ("minilm", {"text": None}, "text: expected a string, got null"),
        ("minilm", {"text": 1}, "text: expected a string, got a number"),
        ("minilm", {"text": {"a": 1}}, "text: expected a string, got an object"),
        ("minilm", {"text": ["a", None, 1]}, "text[1]: expected a string, got null"),
        ("minilm", {"text": ["a", ["b"]]}, "text[1]: expected a string, got an array"),
        ("minilm", {"text": [{}]}, "text[0]: expected a string, got an object"),
        ("minilm", {"prompt": "a"}, "prompt: this model's task is embed; send the field text"),
        ("classify", {"messages": []}, "messages: this model's task is classify; send the field text"),
        ("minilm", {"input_data": [1]}, "input_data: this model's task is embed; send the field text"),
        ("classify", {"inputs": {}}, "inputs: this model's task is classify; send the field text"),
        ("minilm-onnx", {"input_data": [[1]]}, "input_data: expected a model with one required tensor"),
        ("digits", {"text": "a"}, "text: this model reads no text; its inputs are image: float32 [-1, 64]"),
    ],
)
def test_request_for_other_task_refused(model: str, body: dict[str, Any], words: str, server: RunningServer) -> None:
    assert_refused(server.client.post(f"/models/{model}/infer", json=body), 400, "invalid_input", words)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("minilm", {"normalize": False, "truncate": True}),
        ("classify-many", {"top_k": 2, "truncate": True}),
        ("classify-onnx", {"function_to_apply": "none"}),
    ],
)
def test_parameters_equal_own_fields(model: str, options: dict[str, Any], server: RunningServer) -> None:
    def numbers(**given: Any) -> Array:
        answer = server.infer(model, text=TEXTS[:3], **given)
        rows = answer.get("predictions") or answer["embeddings"]
        return np.array([[each["score"] if isinstance(each, dict) else each for each in row] for row in rows])

    found = numbers(parameters=options)
    # A batch adds in another order.
    np.testing.assert_allclose(found, numbers(**options), atol=1e-4)
    whole = numbers()
    assert found.shape != whole.shape or np.abs(found - whole).max() > 1e-3


def test_unknown_parameter_is_refused_by_name(server: RunningServer) -> None:
    body = '{"text": "a", "parameters": {"topk": 2}}'
    assert_refused(server.post("/models/classify/infer", body), 400, "unknown_field", "parameters.topk", "top_k")
