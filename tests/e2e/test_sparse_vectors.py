"""A model of sparse vectors over HTTP: the same elements by every route, their limits, and refusals by name."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.server import RunningServer, check_error, serving
from tests.support.models.sparse_folders import save_splade
from tests.support.models.text_files import TEXTS

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("sparse")
    entry = f'[[models.torch_models]]\nname = "{{}}"\npath = "{save_splade(folder / "splade")}"\n'
    isolated = entry.format("isolated") + 'isolation = "process"\n'
    with serving(folder, entry.format("splade") + isolated) as running:
        yield running.wait_ready()


def ask(server: RunningServer, path: str, **body: object) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def dense(rows: list[list[dict[str, float]]], size: int) -> np.ndarray[Any, Any]:
    found = np.zeros((len(rows), size), np.float32)
    for row, elements in zip(found, rows, strict=True):
        for each in elements:
            row[int(each["index"])] = each["value"]
    return found


@pytest.fixture(scope="module")
def expected(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    """The vectors [texts, size] of SparseEncoder."""
    from sentence_transformers import SparseEncoder

    folder = save_splade(tmp_path_factory.mktemp("reference"))
    reference: Any = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    vectors = reference.encode([*TEXTS], convert_to_sparse_tensor=False, show_progress_bar=False)
    return np.stack([each.numpy() for each in vectors])


@pytest.mark.parametrize("model", ["splade", "isolated"])
def test_embed_sparse_equals_sparse_encoder(server: RunningServer, expected: np.ndarray[Any, Any], model: str) -> None:
    rows = ask(server, "/embed_sparse", model=model, inputs=[*TEXTS])
    for row in rows:
        indices = [each["index"] for each in row]
        assert indices == sorted(set(indices))
        assert all(each["value"] > 0 for each in row)
    np.testing.assert_allclose(dense(rows, expected.shape[1]), expected, atol=TOLERANCE)
    [alone] = ask(server, "/embed_sparse", model=model, inputs=TEXTS[0])
    np.testing.assert_allclose(dense([alone], expected.shape[1]), expected[:1], atol=TOLERANCE)


def test_pooling_returns_vectors_with_zeros(server: RunningServer, expected: np.ndarray[Any, Any]) -> None:
    rows = ask(server, "/pooling", model="splade", input=[*TEXTS])["data"]
    np.testing.assert_allclose([each["data"] for each in rows], expected, atol=TOLERANCE)
    [coded] = ask(server, "/pooling", model="splade", input=TEXTS[0], encoding_format="base64")["data"]
    numbers = np.frombuffer(base64.b64decode(coded["data"]), "<f4")
    np.testing.assert_allclose(numbers, expected[0], atol=TOLERANCE)


def test_limits_keep_highest_elements(server: RunningServer) -> None:
    [whole] = ask(server, "/infer", model_name="splade", text=TEXTS[0])["sparse_embeddings"]
    values = sorted(whole["values"])
    assert len(values) > 4
    [best] = ask(server, "/infer", model_name="splade", text=TEXTS[0], top_k=3)["sparse_embeddings"]
    np.testing.assert_allclose(sorted(best["values"]), values[-3:], rtol=1e-4)
    limit = (values[-3] + values[-2]) / 2
    [above] = ask(server, "/infer", model_name="splade", text=TEXTS[0], min_value=limit)["sparse_embeddings"]
    np.testing.assert_allclose(sorted(above["values"]), values[-2:], rtol=1e-4)
    [none] = ask(server, "/infer", model_name="splade", text=TEXTS[0], min_value=1000)["sparse_embeddings"]
    assert none == {"indices": [], "values": []}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/infer", {"model_name": "splade", "text": "a", "min_value": -1}, "min_value: expected a number from 0"),
        ("/infer", {"model_name": "splade", "text": "a", "min_value": True}, "min_value: expected a number from 0"),
        ("/infer", {"model_name": "splade", "text": "a", "min_value": "1"}, "min_value: expected a number from 0"),
        ("/infer", {"model_name": "splade", "text": "a", "normalize": True}, "normalize: expected no true"),
        ("/pooling", {"model": "splade", "input": "a", "use_activation": True}, "expected no true"),
        ("/embed", {"model": "splade", "inputs": "a"}, "post the texts to /infer, /embed_sparse or /pooling"),
        ("/v1/embeddings", {"model": "splade", "input": "a"}, "post the texts to /infer, /embed_sparse or /pooling"),
        ("/embed_sparse", {"model": "splade", "inputs": 1}, "inputs: expected "),
        ("/embed_sparse", {"model": "splade", "inputs": "a", "prompt_name": "q"}, "prompt_name: expected null"),
        ("/embed_sparse", {"model": "splade", "inputs": "a", "normalize": True}, "normalize"),
    ],
)
def test_wrong_options_refused_by_name(server: RunningServer, path: str, body: dict[str, Any], message: str) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert message in check_error(answer)["message"]
