"""Run the examples of README and manual against one server, and compare their output."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.auth.key_file import editing
from app.auth.keys import create_key
from app.auth.principal import Scope
from app.config import check_file
from tests.e2e.configs import DIGITS
from tests.e2e.server import GRPC_PORT, MODELS, ROOT, Fork, RunningServer, free_port, serving
from tests.manual.pages import ANY, Example, blocks, examples
from tests.support.models.causal_folders import causal_model, save_causal_model
from tests.support.models.lora_folders import Lora, save_lora

SHELL = examples("sh", "json")
PYTHON = examples("python", "text")
KEY_VARIABLES = {"ROUNDHOUSE_API_KEY": False, "ROUNDHOUSE_SIGNED_KEY": True}
"""Variables that examples of docs/security.md read a key from -> whether it is one for signed requests."""
_VARIES = {"latency_ms"}
# Pages whose examples need another server.
_SERVERS = {
    "security": "keyed_server", "adapters": "adapters_server", "collections": "collections_server",
    "pipelines": "pipelines_server",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Start a server with the repository's config.toml on free ports."""
    fork = Fork(needs_torch=True)
    with RunningServer(["--config", "config.toml", "--port", "0"], {GRPC_PORT: free_port()}, fork=fork) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with one model and the keys of KEY_VARIABLES, which are set for the examples."""
    folder = tmp_path_factory.mktemp("keyed")
    texts = {}
    with editing(folder / "keys.toml") as keys:
        for variable, is_signed in KEY_VARIABLES.items():
            key, texts[variable] = create_key("default", frozenset(Scope), time.time(), is_signed=is_signed)
            keys[key.key_id] = key
    with serving(folder, DIGITS, {GRPC_PORT: free_port()}) as running, pytest.MonkeyPatch.context() as patch:
        for variable, text in texts.items():
            patch.setenv(variable, text)
        yield running.wait_ready()


@pytest.fixture(scope="module")
def adapters_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with a model of random weights and an adapter."""
    folder = tmp_path_factory.mktemp("adapters")
    save_causal_model(folder / "model")
    save_lora(folder / "support", Lora(1), causal_model())
    entry = (
        f'[[models.torch_models]]\nname = "tiny-llama"\npath = "{folder}/model"\nkv_cache_bytes = "1MiB"\n'
        f'[[models.torch_models.adapters]]\nname = "support"\npath = "{folder}/support"\n'
    )
    with serving(folder, f'[models]\nroots = ["{folder}"]\n{entry}') as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def collections_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with an embedder and a collection of its texts."""
    folder = tmp_path_factory.mktemp("collections")
    config = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'
    config += '[[collections]]\nname = "docs"\ndimensions = 384\nmodel = "minilm"\n'
    with serving(folder, config) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def pipelines_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with the configuration of docs/pipelines.md."""
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "models").symlink_to(ROOT / "models")
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    config = "".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()


def server_of(example: Example, request: pytest.FixtureRequest) -> RunningServer:
    page = example.name.partition("-")[0]
    found: RunningServer = request.getfixturevalue(_SERVERS.get(page, "server"))
    return found


@pytest.mark.parametrize("example", SHELL, ids=lambda example: example.name)
def test_shell_example_prints_expected_json(request: pytest.FixtureRequest, example: Example) -> None:
    server = server_of(example, request)
    assert "http://127.0.0.1:8080" in example.code or "roundhouse run ./models/" in example.code
    words = ["sh", "-ec", example.code.replace("http://127.0.0.1:8080", server.url)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    check_agrees(json.loads(done.stdout), read_elided(example.output))


@pytest.mark.parametrize("example", PYTHON, ids=lambda example: example.name)
def test_python_example_prints_expected_text(request: pytest.FixtureRequest, example: Example) -> None:
    server = server_of(example, request)
    assert "127.0.0.1:8080" in example.code or "127.0.0.1:8081" in example.code
    code = example.code.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    code = code.replace("127.0.0.1:8081", f"127.0.0.1:{server.grpc_port}")
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    expected = re.escape(example.output.strip()).replace(ANY, ".+")
    assert re.fullmatch(expected, done.stdout.strip(), flags=re.DOTALL), done.stdout


def test_every_example_is_run() -> None:
    assert len(SHELL) == len(blocks("sh"))
    assert len(PYTHON) == len(blocks("python"))


def test_examples_cover_every_kind_of_input() -> None:
    commands = " ".join(example.code for example in SHELL)
    assert all(f'"{name}"' in commands for name in ("input_data", "inputs", "text", "prompt", "messages"))


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_example_is_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "adapters" / "support").mkdir(parents=True)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    assert not check_file(file, {})


def read_elided(output: str) -> Any:
    """Parse JSON in which `…` stands for the rest of a list or object, or for a whole string."""
    text = output.replace(f", {ANY}]", f', "{ANY}"]').replace(f", {ANY}}}", f', "{ANY}": 0}}')
    return json.loads(text)


def check_agrees(actual: Any, expected: Any) -> None:
    """Compare numbers within 1 % or 0.0001, and skip `latency_ms`; more members only where the page has `…`."""
    if isinstance(expected, dict):
        keys = expected.keys() - {ANY}
        assert keys <= actual.keys() if ANY in expected else keys == actual.keys(), (actual.keys(), keys)
        for key in keys - _VARIES:
            check_agrees(actual[key], expected[key])
    elif isinstance(expected, list):
        is_elided = bool(expected) and expected[-1] == ANY
        items = expected[:-1] if is_elided else expected
        assert len(actual) > len(items) if is_elided else len(actual) == len(items)
        for one, other in zip(actual, items, strict=False):
            check_agrees(one, other)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=0.01, abs=1e-4)
    elif expected != ANY:
        assert actual == expected
