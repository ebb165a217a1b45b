"""A model that asks for more memory than exists: its batches are split, and the server stays up."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.server import RunningServer, assert_refused, serving
from tests.support.models import onnx_costly_graphs, onnx_graphs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("hoards")
    onnx_graphs.save(onnx_costly_graphs.hoards(), folder)
    config = f'[models]\nroots = ["{folder}"]\n[[models.onnx_models]]\nname = "hoards"\npath = "{folder}"\n'
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


def split(server: RunningServer) -> float:
    return server.sample("roundhouse_batches_split_total", model="hoards")


def test_batch_too_large_is_split(server: RunningServer) -> None:
    assert server.client.get("/models/hoards").json()["version_details"]["1"]["batching"] == "on"
    before = split(server)
    for _ in range(3):
        assert server.infer("hoards", input_data=[*range(100)])["output_data"] == [*range(100)]
    assert split(server) > before
    told = "batch did not fit and was split; later batches are smaller"
    server.wait_for_log(told)
    assert [(entry["model"], entry["level"]) for entry in server.events(told)] == [("hoards", "warning")]


def test_only_row_too_large_is_refused(server: RunningServer) -> None:
    def ask(x: int) -> httpx.Response:
        return server.client.post("/infer", json={"model_name": "hoards", "input_data": [x]})

    asked = [5000 if i == 20 else i for i in range(40)]
    with ThreadPoolExecutor(len(asked)) as pool:
        for x, answer in zip(asked, pool.map(ask, asked), strict=True):
            if x == 5000:
                assert_refused(answer, 507, "out_of_memory", "does not fit into memory")
            else:
                assert answer.json()["output_data"] == [x]
    many = server.client.post("/infer", json={"model_name": "hoards", "input_data": [*range(30), 5000]})
    assert_refused(many, 507, "out_of_memory", "does not fit into memory")
    assert server.infer("hoards", input_data=[7])["output_data"] == [7]
