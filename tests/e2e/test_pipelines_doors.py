"""Pipelines with functions of an installed package, in traces, on the command line, and with quotas of tenants."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import main
from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, ROOT, WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.keyring import make_key, write_keys
from tests.support.models import onnx_graphs
from tests.support.otlp_collector import Collector, collecting

PACKAGE = """
def word_counts(text):
    if "" in text.tolist():
        raise ValueError("expected texts, got an empty one")
    return {"counts": [len(each.split()) for each in text], "loud": [each.upper() for each in text]}

def wrong(text):
    return {"counts": "many"}
"""
ENTRY_POINTS = """[roundhouse.steps]
word-counts = counting_steps:word_counts
wrong = counting_steps:wrong
never-imported = missing_module:function
"""
MINILM = f"""
[[models.onnx_models]]
name = "minilm"
path = "{MODELS / "minilm-onnx"}"
"""
PIPELINES = """
[[pipelines]]
name = "words"
inputs = { text = "text" }
outputs = { vectors = "embed", counts = "count", loud = "count.loud" }
[[pipelines.steps]]
name = "embed"
model = "minilm"
inputs = { text = "count.loud" }
[[pipelines.steps]]
name = "count"
function = "word-counts"
inputs = { text = "text" }
outputs = { counts = "int64[-1]", loud = "text" }
[[pipelines]]
name = "broken"
inputs = { text = "text" }
outputs = { counts = "count" }
steps = [{ name = "count", function = "wrong", inputs = { text = "text" }, outputs = { counts = "int64[-1]" } }]
[[pipelines]]
name = "odds"
inputs = ["x"]
outputs = { odds = "odds", best = "best.indices" }
steps = [
    { name = "same", model = "same", inputs = { x = "x" } },
    { name = "odds", builtin = "softmax", inputs = { values = "same" } },
    { name = "best", builtin = "top_k", top_k = 1, inputs = { values = "odds" } },
]
"""
ROW = [1.0, 4.0, 2.0, 3.0]


def install(folder: Path) -> Path:
    """Lay a package with entry points into a folder, as an installer does."""
    described = folder / "counting_steps-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "counting_steps.py").write_text(PACKAGE, encoding="utf-8")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-steps\nVersion: 1.0\n", encoding="utf-8")
    (described / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("doors")
    models = MINILM + onnx_entries(folder, {"same": onnx_graphs.identity(shape=("n", 4))})
    environ = {
        "PYTHONPATH": f"{ROOT}:{install(folder / 'site')}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    with serving(folder, models + PIPELINES, environ, is_fork=False) as running:
        yield running.wait_ready()


class TestFunctions:
    def test_function_of_package_runs_as_a_step(self, server: RunningServer) -> None:
        outputs = server.infer("words", inputs={"text": ["cats sleep", "dogs"]})["outputs"]
        assert (outputs["counts"]["data"], outputs["loud"]["data"]) == ([2, 1], ["CATS SLEEP", "DOGS"])
        direct = server.infer("minilm", text=["CATS SLEEP", "DOGS"])["embeddings"]
        assert outputs["vectors"]["data"] == [pytest.approx(row, abs=1e-5) for row in direct]

    def test_value_error_is_an_error_of_the_request(self, server: RunningServer) -> None:
        answer = server.client.post("/models/words/infer", json={"text": ["a", ""]})
        assert_refused(answer, 400, "invalid_input", 'expected texts, got an empty one (step "count")')

    def test_wrong_value_is_a_failure_without_details(self, server: RunningServer) -> None:
        answer = server.client.post("/models/broken/infer", json={"text": "a"})
        message = assert_refused(answer, 503, "model_failed", 'step "count": its function returned a wrong value')
        assert "many" not in message
        assert server.wait_for_log("the function of a step returned a wrong value", function="wrong")

    def test_request_cannot_name_a_function(self, server: RunningServer) -> None:
        entry = {"name": "own", "framework": "pipeline", "steps": [{"name": "s", "function": "word-counts"}]}
        assert server.client.post("/models", json=entry).status_code == 400
        answer = server.client.post("/models/words/infer", json={"text": "a", "function": "wrong"})
        assert_refused(answer, 400, "unknown_field", "function")


class TestTraces:
    def test_each_step_has_a_span(self, server: RunningServer, collector: Collector) -> None:
        header = "00-0000000000000000000000000000abcd-b7ad6b7169203331-01"
        answer = server.client.post("/models/odds/infer", json={"input_data": ROW}, headers={"traceparent": header})
        assert answer.status_code == 200
        wait_until(lambda: any(span.trace_id == (0xABCD).to_bytes(16) for span in collector.requests()), WAIT_S)
        (span,) = [each for each in collector.requests() if each.trace_id == (0xABCD).to_bytes(16)]
        assert span.name == "infer odds"
        wait_until(lambda: len(collector.children(span)) == 4, WAIT_S)
        children = collector.children(span)
        assert [child.name for child in children] == ["step same", "step odds", "step best", "encode"]
        for child in children:
            assert span.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
        wait_until(lambda: len(collector.batches(span)) == 1, WAIT_S)


class TestCommandLine:
    def test_infer_prints_the_answer(self, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["infer", "odds", "--inputs", json.dumps({"x": [ROW]}), "--url", server.url]) == 0
        assert json.loads(capsys.readouterr().out)["outputs"]["best"]["data"] == [[1]]

    def test_run_sends_rows_to_the_server(self, server: RunningServer, tmp_path: Path) -> None:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text("".join(json.dumps({"x": [*ROW[:2], float(i), 9.0]}) + "\n" for i in range(40)))
        assert main(["run", "odds", str(source), str(output), "--columns", "x", "--url", server.url]) == 0
        best = [json.loads(line)["best"] for line in output.read_text().splitlines()]
        assert best == [[3] if i < 9 else [2] for i in range(40)]


class TestTenants:
    def test_tokens_of_steps_are_charged_once(self, start: Start, tmp_path: Any) -> None:
        keys = {name: make_key(name) for name in ("direct", "piped")}
        write_keys(tmp_path / "keys.toml", *keys.values())
        unit = """
[[pipelines]]
name = "unit"
inputs = ["text"]
outputs = { embeddings = "unit" }
steps = [
    { name = "embed", model = "minilm", normalize = false, inputs = { text = "text" } },
    { name = "unit", builtin = "normalize", inputs = { values = "embed" } },
]
"""
        config = MINILM + unit + '[auth]\nmode = "required"\n'
        for name in keys:
            config += f'[[auth.tenants]]\nname = "{name}"\ntokens_per_minute = 1\n'
        server = start(config).wait_ready()
        waits = {}
        for name, model in (("direct", "minilm"), ("piped", "unit")):
            body = {"model": model, "input": "word " * 100}
            for status in (200, 429):
                answer = server.client.post("/v1/embeddings", json=body, headers=keys[name].headers)
                assert answer.status_code == status, answer.text
            waits[name] = int(answer.headers["retry-after"])
        # A debt of about 100 minutes.
        assert 80 * 60 < waits["direct"] < 120 * 60
        assert 80 * 60 < waits["piped"] < 120 * 60
