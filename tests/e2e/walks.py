"""The files that requests pass, counted at a server: `python -m tests.e2e.walks` lists them in docs/architecture.md."""

import ast
import io
import json
import re
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from PIL import Image

from tests.e2e.server import MODELS, ROOT, free_port
from tests.manual.reference import DOCS, replaced

PAGE = DOCS / "architecture.md"
_TITLES = {
    "tensor": "A tensor: `POST /infer` with `input_data`, on a connection that is open",
    "image": "An image: `POST /models/shapes/infer` with a JPEG file",
    "chat": "A chat: `POST /v1/chat/completions` with a stream of 8 tokens",
}
_ROW = re.compile(r"^\d+\. `([\w/.]+)`", re.MULTILINE)
_END_WITHIN_S = 300.0
_QUEUE = "frameworks/scheduling/batch/queue.py"


def configuration(folder: Path, port: str, with_keys: bool = False) -> Path:
    """Write a file with the embedded models that the requests are for. `with_keys`: keys.toml beside it is needed."""
    text = f'[server]\nport = {port}\ngrpc_port = 0\n[logging]\nrequests = "none"\nlevel = "error"\n'
    text += f'[models]\ncache_dir = "{MODELS}"\n[performance]\nintra_op_threads = 1\n'
    if with_keys:
        text += '[auth]\nmode = "required"\nkeys_file = "keys.toml"\n'
    models = [("onnx", "digits")] if with_keys else [("onnx", "digits"), ("onnx", "shapes"), ("torch", "tiny-llama")]
    for kind, name in models:
        text += f'[[models.{kind}_models]]\nname = "{name}"\npath = "{MODELS / name}"\n'
        if kind == "torch":
            text += 'kernels = "compiled"\n'  # a measurement on a busy machine may choose others
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


def is_queued_image(case: str, found: dict[str, Any]) -> bool:
    """Whether a thread ran the image: the page shows the walk of one that runs on the event loop."""
    return case == "image" and _QUEUE in found["walk"]


def section(found: dict[str, Any]) -> str:
    """Return the lists of files, each with the first line of its docstring."""
    return "\n\n".join(
        f"#### {title}\n\n"
        + "\n".join(f"{i}. `{file}` {_about(file)}" for i, file in enumerate(found[case]["walk"], 1))
        for case, title in _TITLES.items()
    )


def listed(page: str) -> dict[str, set[str]]:
    """Return the files of each list in the page."""
    texts = page.partition("<!-- generated: walks -->")[2].partition("<!-- end: walks -->")[0]
    return {case: set(_ROW.findall(texts.partition(title)[2].partition("####")[0])) for case, title in _TITLES.items()}


def _about(file: str) -> str:
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def main() -> None:
    """Rewrite the lists."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        found = counted(configuration(Path(folder), port), port)
    if is_queued_image("image", found["image"]):
        raise SystemExit("image: expected a run on the event loop, got one in a thread; try again on an idle, fast CPU")
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "walks", section(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
