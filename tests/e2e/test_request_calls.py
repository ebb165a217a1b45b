"""Bounds of the Python calls and files that a request passes: a new stage for every request shows here."""

import io
import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.e2e.server import MODELS, ROOT, free_port
from tests.support.keyring import make_key, write_keys

# Calls and files. Later versions than Python 3.11 have no calls for comprehensions. A chat stream of 8 tokens and an
# image are alone at the server; tensors, and those with an API key, come on 32 connections. The calls of a chat depend
# on how its steps fall together: 590 to 1,050 were measured.
BOUNDS = {"tensor": (54, 18), "key": (59, 21), "chat": (1200, 70), "image": (119, 31)}
_END_WITHIN_S = 300.0


def configuration(folder: Path, port: str, with_keys: bool = False) -> Path:
    """Write a file with the embedded models that the requests are for. `with_keys`: keys.toml beside it is needed."""
    text = f'[server]\nport = {port}\ngrpc_port = 0\n[logging]\nrequests = "none"\nlevel = "error"\n'
    text += f'[models]\ncache_dir = "{MODELS}"\n[performance]\nintra_op_threads = 1\n'
    if with_keys:
        text += '[auth]\nmode = "required"\nkeys_file = "keys.toml"\n'
    models = [("onnx", "digits")] if with_keys else [("onnx", "digits"), ("onnx", "shapes"), ("torch", "tiny-llama")]
    for kind, name in models:
        text += f'[[models.{kind}_models]]\nname = "{name}"\npath = "{MODELS / name}"\n'
    file = folder / "config.toml"
    file.write_text(text)
    return file


def counted(config: Path, port: str, *key: str) -> dict[str, Any]:
    """Return the counts by case."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(picture, "JPEG")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.counted_server", str(config), port, *key],
        input=b64encode(picture.getvalue()) + b"\n",
        check=False,
        capture_output=True,
        cwd=ROOT,
        timeout=_END_WITHIN_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"case"')]
    assert found, done.stderr.decode()[-2000:]
    return {each["case"]: each for each in found}


@pytest.mark.extended
def test_request_passes_bounded_calls_and_files(tmp_path: Path) -> None:
    port = free_port()
    found = counted(configuration(tmp_path, port), port)
    assert list(found) == ["tensor", "chat", "image"]
    assert_bounded(found)


@pytest.mark.extended
def test_request_with_key_passes_bounded_calls(tmp_path: Path) -> None:
    port, key = free_port(), make_key("red")
    write_keys(tmp_path / "keys.toml", key)
    found = counted(configuration(tmp_path, port, with_keys=True), port, key.text)
    assert list(found) == ["key"]
    assert_bounded(found)


def assert_bounded(found: dict[str, Any]) -> None:
    for case, each in found.items():
        calls, files = BOUNDS[case]
        assert each["calls"] <= calls, each
        assert each["files"] <= files, each
