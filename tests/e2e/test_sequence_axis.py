"""A model with a sequence axis: requests of different lengths share runs, with the outputs of single ones."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.e2e.server import RunningServer, assert_refused, serving
from tests.support.models import onnx_encoders, onnx_graphs

MASKED = onnx_encoders.encoder(("last_hidden_state", "sentence_embedding"), vocabulary_size=128)
UNMASKED = onnx_encoders.encoder(("sentence_embedding",), inputs=("input_ids",), vocabulary_size=128)
GRAPHS = {"masked": MASKED, "unmasked": UNMASKED, "plain": onnx_graphs.free("n", "length")}
KEYS = "sequence_axis = 1\npad_values = { input_ids = 3 }\n"
# The delay of a batch: enough for all requests that are sent at once.
DELAY = "max_queue_delay_ms = 300\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("sequences")
    keys = {
        "masked": KEYS + 'mask_input = "attention_mask"\n' + DELAY,
        "unmasked": KEYS + DELAY + "max_batch_tokens = 64\n",
        "plain": "",
    }
    config = f'[models]\nroots = ["{folder}"]\n'
    for name, graph in GRAPHS.items():
        (folder / name).mkdir()
        onnx_graphs.save(graph, folder / name)
        config += f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}"\n{keys[name]}'
    with serving(folder, config) as running:
        running.wait_ready()
        # The cost model learns that rows can be batched: the first batches are small otherwise.
        for model, rows, length in (("masked", 32, 12), ("unmasked", 5, 12)):
            for _ in range(3):
                running.infer(model, inputs={"input_ids": [[1] * length] * rows})
        yield running


def ask_at_once(server: RunningServer, model: str, questions: list[list[list[int]]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = pool.map(lambda ids: server.infer(model, inputs={"input_ids": ids}), questions)
        return [answer["outputs"] for answer in answers]


def questions(lengths: list[int]) -> list[list[list[int]]]:
    random = np.random.default_rng(1)
    return [random.integers(0, 128, (1 + i % 3, length)).tolist() for i, length in enumerate(lengths)]


def assert_as_raw(raw: ort.InferenceSession, ids: list[list[int]], outputs: dict[str, Any]) -> None:
    feeds: dict[str, Any] = {"input_ids": np.array(ids, np.int64)}
    if len(raw.get_inputs()) == 2:
        feeds["attention_mask"] = np.ones_like(feeds["input_ids"])
    for declared, expected in zip(raw.get_outputs(), raw.run(None, feeds), strict=True):
        got = outputs[declared.name]
        assert got["shape"] == list(expected.shape)
        np.testing.assert_allclose(np.reshape(got["data"], expected.shape), expected, 1e-4, 1e-5)


MIXED = [9, 10, 11, 12, 13, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("model", "lengths", "most_batches"),
    # With padding, rows of different lengths share a batch; without it, only equal ones do.
    [("masked", MIXED, len(set(MIXED)) - 1), ("unmasked", MIXED, len(MIXED)), ("unmasked", [11] * 10, 9)],
)
def test_padded_responses_equal_single_ones(
    server: RunningServer, model: str, lengths: list[int], most_batches: int
) -> None:
    asked = questions(lengths)
    raw = onnx_graphs.session(GRAPHS[model])
    fewest = len(asked)
    # On a busy machine requests may arrive one by one, so several rounds are tried.
    for _ in range(20):
        ran, rows = (server.sample(f"roundhouse_batch_size_{what}", model=model) for what in ("count", "sum"))
        for ids, outputs in zip(asked, ask_at_once(server, model, asked), strict=True):
            assert_as_raw(raw, ids, outputs)
        assert server.sample("roundhouse_batch_size_sum", model=model) - rows == sum(map(len, asked))
        fewest = min(fewest, int(server.sample("roundhouse_batch_size_count", model=model) - ran))
        if fewest <= most_batches:
            break
    assert fewest <= most_batches


def test_model_description_shows_padding(server: RunningServer) -> None:
    details = {name: server.client.get(f"/models/{name}").json()["version_details"]["1"] for name in GRAPHS}
    assert {name: detail["batching"] for name, detail in details.items()} == dict.fromkeys(GRAPHS, "on")
    assert details["masked"]["padding"] == "on"
    assert details["unmasked"]["padding"].startswith('output "sentence_embedding" of a padded row differs')
    assert details["plain"]["padding"] is None


def test_mask_is_optional(server: RunningServer) -> None:
    ids = [[1, 2, 3, 4]]
    left_out = server.infer("masked", inputs={"input_ids": ids})["outputs"]
    assert server.infer("masked", inputs={"input_ids": ids, "attention_mask": [[1] * 4]})["outputs"] == left_out
    assert server.infer("masked", inputs={"input_ids": ids, "attention_mask": [[1, 1, 0, 0]]})["outputs"] != left_out
    sole = server.infer("masked", input_data=ids)
    assert np.ravel(sole["output_data"]).tolist() == np.ravel(left_out["last_hidden_state"]["data"]).tolist()


def test_registration_checks_sequence_keys(server: RunningServer) -> None:
    path = server.client.get("/models/masked").json()["version_details"]["1"]["path"]
    body = {"framework": "onnx", "name": "again", "path": path, "sequence_axis": 1, "mask_input": "attention_mask"}
    answer = server.client.post("/models", json=body | {"mask_input": "attention"})
    assert_refused(answer, 400, "invalid_input", "mask_input", 'did you mean "attention_mask"?')
    answer = server.client.post("/models", json={**body, "sequence_axis": None})
    assert_refused(answer, 400, "invalid_input", "mask_input", "expected no value without sequence_axis")
    answer = server.client.post("/models", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["version_details"]["1"]["padding"] == "on"
    assert server.client.delete("/models/again").status_code == 200
