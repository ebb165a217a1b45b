"""Management orders for models in processes of their own: swaps, canaries, changed files and evictions."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.engines import ISOLATED, Question, engine, engines, halted, kill, loaded, restarts, state, wait_at_rest
from tests.e2e.server import RunningServer, assert_refused, wait_until
from tests.support.models import onnx_costly_graphs, onnx_graphs

pytestmark = pytest.mark.extended

MEGABYTES = 20
SIDE = onnx_costly_graphs.side(0.1)
ONES = {"input_data": [1] * SIDE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two versions, which multiply by 1 and by 2."""
    for version in (1, 2):
        (tmp_path / "m" / str(version)).mkdir(parents=True)
        save(tmp_path / "m", version, version)
    return tmp_path / "m"


def save(folder: Path, version: int, factor: float) -> None:
    onnx_graphs.save(onnx_costly_graphs.weighted(factor, 0.1), folder / "new.onnx")
    (folder / "new.onnx").rename(folder / str(version) / "model.onnx")


def entry(folder: Path, keys: str = "") -> str:
    return f'[[models.onnx_models]]\nname = "m"\npath = "{folder}"\n{keys}\n' + ISOLATED


def order(server: RunningServer, verb: str = "load", model: str = "m", **body: object) -> Any:
    answer = server.client.post(f"/models/{model}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(server: RunningServer) -> tuple[str, float]:
    """Return the version that answered, and its factor."""
    body = server.infer("m", **ONES)
    return body["version"], body["output_data"][0]


def test_swap_and_rollback_under_load_fail_nothing(start: Start, folder: Path) -> None:
    server = start(entry(folder)).wait_ready()
    both = Question("m", ONES, lambda body: body["output_data"] == [int(body["version"])] * SIDE)
    with loaded(server, {both: 8}) as load:
        for _ in range(2):
            order(server, "load", version="1")
            load.wait_for_more("m")
            assert order(server, "rollback")["active_version"] == "2"
            load.wait_for_more("m")
    assert set(load.outcomes) == {("m", "right")}, load.problems[:3]
    wait_at_rest(server, 1)
    # A changed file is loaded into a new process.
    before = engine(server, "m")
    save(folder, 2, 5)
    order(server)
    assert ask(server) == ("2", 5)
    assert engine(server, "m") != before
    wait_at_rest(server, 1)


def test_canary_has_process_of_its_own(start: Start, folder: Path) -> None:
    server = start(entry(folder)).wait_ready()
    order(server, "load", version="1")
    [stable] = [process for _, process in engines(server)]
    order(server, canary={"version": "2", "percent": 25})
    assert Counter(ask(server) for _ in range(20)) == {("1", 1): 15, ("2", 2): 5}
    [canary] = [process for _, process in engines(server) if process != stable]
    canary.kill()
    # Requests of the canary wait for its restart; those that arrive after its loss go to the other version.
    assert {ask(server) for _ in range(20)} <= {("1", 1), ("2", 2)}
    wait_until(lambda: restarts(server, "m") == 1 and ("2", 2) in {ask(server) for _ in range(4)})
    assert Counter(ask(server) for _ in range(20)) == {("1", 1): 15, ("2", 2): 5}
    assert restarts(server, "m") == 1
    assert stable.is_running()
    wait_at_rest(server, 2)
    order(server, canary=None)
    wait_at_rest(server, 1)
    assert stable.is_running()


def test_watched_file_is_swapped(start: Start, folder: Path) -> None:
    server = start(entry(folder, "watch = true")).wait_ready()
    save(folder, 2, 7)
    wait_until(lambda: ask(server) == ("2", 7))
    (folder / "3").mkdir()
    (folder / "3" / "model.onnx").write_bytes(b"no graph at all")
    server.wait_for_log("changed files are not served", model="m")
    assert ask(server) == ("2", 7)
    wait_at_rest(server, 1)


def test_unload_ends_process_even_if_halted(start: Start, folder: Path) -> None:
    """A process that does not end by itself is killed."""
    server = start(entry(folder)).wait_ready()
    with halted(server, "m"):
        order(server, "unload")
        assert_refused(server.client.post("/models/m/infer", json=ONES), 503, "unloaded")
        wait_at_rest(server, 0)
    order(server, "load")
    assert ask(server) == ("2", 2)
    wait_at_rest(server, 1)


def test_orders_replace_crashed_process(start: Start, folder: Path) -> None:
    """Its second crash in a row would be restarted late: an order loads the model at once."""
    server = start(entry(folder)).wait_ready()
    for _ in range(3):
        kill(server, "m")
        wait_until(lambda: state(server, "m") != "ready")
        order(server, "unload")
        wait_at_rest(server, 0)
        order(server, "load")
        assert ask(server) == ("2", 2)
    wait_at_rest(server, 1)


def test_evicted_model_has_no_process(start: Start, tmp_path: Path) -> None:
    # A process counts with its own memory, so that two models fit.
    text = '[memory]\nmax_model_memory = "200MB"\n' + ISOLATED
    factors = {"a": 2, "b": 3, "c": 5}
    side = onnx_costly_graphs.side(MEGABYTES)
    for name, factor in factors.items():
        onnx_graphs.save(onnx_costly_graphs.weighted(factor, MEGABYTES), tmp_path / f"{name}.onnx")
        text += f'[[models.onnx_models]]\nname = "{name}"\npath = "{tmp_path / name}.onnx"\nload = "lazy"\n'
    server = start(text).wait_ready()
    assert engines(server) == []
    for name in ("a", "b", "c", "a"):
        assert server.infer(name, input_data=[1] * side)["output_data"] == [factors[name]] * side
        assert len(engines(server)) <= 2
    wait_at_rest(server, 2)
    ready = {name for name in factors if state(server, name) == "ready"}
    assert {name for name, _ in engines(server)} == ready
    assert "a" in ready
