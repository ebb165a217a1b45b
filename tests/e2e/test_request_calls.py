"""Bounds of the Python calls and files that a request passes: a new stage for every request shows here."""

import io
import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.server import MODELS, ROOT, free_port

# Calls and files. The measured numbers on Python 3.11 are a few percent below (tensor 62.6 and 25, chat 1,092 and 72,
# image 151 and 37). The calls of a chat have reached the number that was aimed at. Later versions have no calls for
# comprehensions. A chat stream of 8 tokens and an image are alone at the server; tensors come on 32 connections.
BOUNDS = {"tensor": (66, 27), "chat": (1200, 76), "image": (160, 40)}
_END_WITHIN_S = 300.0


def configuration(folder: Path, port: str) -> Path:
    """Write a file with the embedded models that the requests are for."""
    text = f'[server]\nport = {port}\ngrpc_port = 0\n[logging]\nrequests = "none"\nlevel = "error"\n'
    text += f'[models]\ncache_dir = "{MODELS}"\n[performance]\nintra_op_threads = 1\n'
    for kind, name in (("onnx", "digits"), ("onnx", "shapes"), ("torch", "tiny-llama")):
        text += f'[[models.{kind}_models]]\nname = "{name}"\npath = "{MODELS / name}"\n'
    file = folder / "config.toml"
    file.write_text(text)
    return file


@pytest.mark.extended
def test_request_passes_bounded_calls_and_files(tmp_path: Path) -> None:
    port = free_port()
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(picture, "JPEG")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.counted_server", str(configuration(tmp_path, port)), port],
        input=b64encode(picture.getvalue()) + b"\n",
        check=False,
        capture_output=True,
        cwd=ROOT,
        timeout=_END_WITHIN_S,
    )
    counted = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"case"')]
    assert [each["case"] for each in counted] == list(BOUNDS), done.stderr.decode()[-2000:]
    for each in counted:
        calls, files = BOUNDS[each["case"]]
        assert each["calls"] <= calls, each
        assert each["files"] <= files, each
