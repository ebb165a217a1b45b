"""`roundhouse run --into`: fill a collection of a server, or one that the command opens, and resume."""

import json
from pathlib import Path

import pytest

from app.cli.commands import main
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer

pytestmark = pytest.mark.extended

TEXTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]
ROWS = 40


def config_of(folder: Path, name: str = "docs") -> str:
    entry = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'
    path = f'path = "{folder / "collection"}"'
    return entry + f'[[collections]]\nname = "{name}"\ndimensions = 384\nmodel = "minilm"\n{path}\n'


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [
        {"key": i, "text": f"{TEXTS[i % 3]} {i // 3}", "topic": ["bread", "sheds", "engines"][i % 3], "n": i / 4}
        for i in range(ROWS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(rows: Path, *more: str) -> int:
    output = rows.with_name("out.parquet")
    words = ["run", "minilm", str(rows), str(output), "--column", "text", "--window", "8", *more]
    return main([*words, "--into", "docs", "--id", "key", "--metadata", "topic,n"])


def check_filled(server: RunningServer) -> None:
    assert server.client.get("/v1/collections/docs").json()["rows"] == ROWS
    body = {"query": "Where do engines wait?", "top_k": 3, "filter": {"n": {"gte": 5}}}
    hits = server.client.post("/v1/collections/docs/search", json=body).json()["results"]
    assert {hit["metadata"]["topic"] for hit in hits} == {"engines"}
    assert all(hit["metadata"]["n"] == int(hit["id"]) / 4 >= 5 for hit in hits)
    assert all(hit["text"].startswith(TEXTS[2]) for hit in hits)


def test_run_fills_collection_of_server(rows: Path, tmp_path: Path, start: Start) -> None:
    server = start(config_of(tmp_path)).wait_ready()
    assert run(rows, "--url", server.url) == 0
    check_filled(server)


@pytest.mark.extended
def test_run_fills_collection_of_config(
    rows: Path, tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "local.toml"
    config.write_text(config_of(tmp_path))
    lines = rows.read_text().splitlines(keepends=True)
    broken = [*lines[:20], lines[20].replace('"key": 20', '"key": null'), *lines[21:]]
    rows.write_text("".join(broken))
    assert run(rows, "--config", str(config)) == 1
    assert "key: expected a text or an integer as the id of each row, got null" in capsys.readouterr().err
    rows.write_text("".join(lines))
    assert run(rows, "--config", str(config), "--restart") == 0
    check_filled(start(config_of(tmp_path)).wait_ready())


@pytest.mark.extended
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--into", "dox", "--id", "key"], '--into: expected a collection of --config, which has docs, got "dox"'),
        (["--into", "docs"], "--into: expected --id with it, got none"),
        (["--into", "docs", "--id", "keys"], '--id: expected one of key, text, topic, n, got "keys"'),
        (["--id", "key"], "--id: expected --into with it, got none"),
    ],
)
def test_wrong_option_is_named(
    more: list[str], message: str, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "local.toml"
    config.write_text(config_of(tmp_path))
    words = ["run", "minilm", str(rows), str(tmp_path / "out.parquet"), "--column", "text", "--config", str(config)]
    assert main([*words, *more]) == 2
    assert message in capsys.readouterr().err
