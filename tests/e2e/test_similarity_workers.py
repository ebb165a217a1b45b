"""Similarity with several workers, and with a model in a process of its own."""

import pytest

from tests.e2e.conftest import Start
from tests.e2e.server import MODELS

pytestmark = pytest.mark.extended

MINILM = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'


@pytest.mark.parametrize(
    "mode", ["[server]\nworkers = 2\n", '[performance]\nisolation = "process"\n'], ids=["workers", "process"]
)
def test_texts_are_compared(mode: str, start: Start) -> None:
    server = start(mode + MINILM).wait_ready()
    body = {
        "items": ["Where do engines wait?"],
        "others": ["Bread rises.", "Engines wait in a roundhouse."],
        "top_k": 1,
    }
    for _ in range(4):
        answer = server.client.post("/v1/similarity", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["nearest"][0][0]["index"] == 1
    assert server.client.get("/v1/collections").json() == {"collections": []}
    answer = server.client.post("/v1/collections/docs/search", json={"query": [1]})
    assert answer.status_code == 404
