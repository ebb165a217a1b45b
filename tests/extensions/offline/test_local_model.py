"""A model that is loaded for a run: the number of its requests, and the settings that it ignores."""

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli.model_paths import with_models
from app.config import LoadedSettings, load_settings
from extensions.offline.contract import RunFailed
from extensions.offline.input.files import find_files
from extensions.offline.job import RunJob, RunResult, run_job
from extensions.offline.local_model import QUEUED_ROWS, open_local_model
from extensions.offline.requests import RowSource
from tests.e2e.server import MODELS

ROWS = 300


def load(name: str, **overrides: Any) -> LoadedSettings:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    loaded = load_settings(None, {}, dotted)
    return replace(loaded, settings=with_models(loaded.settings, [str(MODELS / name)]))


async def queued_rows(loaded: LoadedSettings, name: str) -> int:
    async with open_local_model(loaded, name) as model:
        return model.concurrency * model.rows_per_request


@pytest.mark.parametrize("max_batch_size", [8, 32, 64])
def test_texts_fill_queue(max_batch_size: int) -> None:
    loaded = load("minilm-onnx", performance__max_batch_size=max_batch_size)
    assert asyncio.run(queued_rows(loaded, "minilm-onnx")) == QUEUED_ROWS


def test_tensors_fill_two_batches_per_instance() -> None:
    assert asyncio.run(queued_rows(load("digits"), "digits")) == 4 * 32


@pytest.mark.extended
def test_server_bounds_do_not_end_run(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(ROWS)))
    bounds = {"max_queue_size": 1, "max_concurrent_requests": 1, "default_timeout_ms": 1}
    loaded = load("minilm-onnx", **{f"scheduling__{key}": value for key, value in bounds.items()})
    models = loaded.settings.models
    entries = tuple(
        entry.model_copy(update={"max_queue_size": 1, "max_concurrent_requests": 1}) for entry in models.onnx_models
    )
    bounded = models.model_copy(update={"onnx_models": entries})
    loaded = replace(loaded, settings=loaded.settings.model_copy(update={"models": bounded}))
    output = tmp_path / "out.jsonl"
    job = RunJob(find_files(str(source), output), tmp_path / "out.parts", RowSource("text", {}, "text", {}))

    async def run() -> RunResult:
        async with open_local_model(loaded, "minilm-onnx") as model:
            return await run_job(job, model, io.StringIO())

    assert asyncio.run(run()) == RunResult(ROWS, 0)
    assert len(output.read_text().splitlines()) == ROWS


@pytest.mark.parametrize(("named", "used"), [(None, 10), (0, 0), (3, 3)])
def test_engine_process_has_low_priority(named: int | None, used: int) -> None:
    loaded = load("digits")
    models = loaded.settings.models
    entries = tuple(entry.model_copy(update={"niceness": named}) for entry in models.onnx_models)
    models = models.model_copy(update={"onnx_models": entries})
    loaded = replace(loaded, settings=loaded.settings.model_copy(update={"models": models}))

    async def niceness() -> int | None:
        async with open_local_model(loaded, "digits") as model:
            return model.slot.entry.niceness

    assert asyncio.run(niceness()) == used


def test_pipeline_with_search_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """
[[collections]]
name = "docs"
dimensions = 4
[[pipelines]]
name = "find"
inputs = ["vectors"]
outputs = { texts = "one" }
steps = [{ name = "one", collection = "docs", inputs = { vectors = "vectors" } }]
"""
    )
    with pytest.raises(RunFailed, match="send to the server with --url"):
        asyncio.run(queued_rows(load_settings(file, {}, {}), "find"))
    assert not (tmp_path / "collections").exists()


PIPELINE = f"""
[[models.onnx_models]]
name = "digits"
path = "{MODELS / "digits"}"
[[models.onnx_models]]
name = "missing"
path = "nowhere"
[[pipelines]]
name = "odds"
inputs = ["image"]
outputs = {{ label = "read", odds = "odds" }}
max_concurrent_requests = 1
steps = [
    {{ name = "read", model = "digits", inputs = {{ image = "image" }} }},
    {{ name = "odds", builtin = "softmax", inputs = {{ values = "image" }} }},
]
"""


def test_pipeline_runs_with_its_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from app.cli.commands import main

    config, source, output = tmp_path / "c.toml", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    config.write_text(PIPELINE, encoding="utf-8")
    source.write_text("".join(json.dumps({"pixels": [float(i % 16)] * 64}) + "\n" for i in range(ROWS)))
    words = ["run", "odds", str(source), str(output), "--columns", "image=pixels", "--config", str(config)]
    assert main(words) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == ROWS
    assert all(abs(sum(row["odds"]) - 1.0) < 1e-5 for row in rows)
