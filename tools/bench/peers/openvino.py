"""Convert language models for OpenVINO GenAI, and start its pipeline behind a small server."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench.peers.install import python_of
from tools.bench.peers.llama_cpp import quantized
from tools.bench.shared.instruction_sets import mask
from tools.bench.shared.servers import ROOT, RunningServer, started

_TOKENIZER = "tokenizer.json"


@contextmanager
def openvino_genai(model: Path, file: Path, precision: str) -> Iterator[RunningServer]:
    """Start the server with `POST /v1/completions`. `model`: a folder of Hugging Face. `file`: the same as a GGUF file
    of float32. `precision`: of the arithmetic, f32 or bf16.

    Raises RuntimeError if it does not run.
    """
    python = str(python_of("openvino"))
    folder = _converted(python, model, file)
    command = [python, "-m", "tools.bench.peers.openvino_server", str(folder), str(folder / _TOKENIZER), precision]
    with started([*command, "{port}"], "/health", environment=mask()) as server:
        yield server


def _converted(python: str, model: Path, file: Path) -> Path:
    folder = file.with_name(f"{model.name}-openvino")
    if not (folder / _TOKENIZER).exists():
        # The conversion writes beside the file of float16.
        half = folder / "half" / file.name
        half.parent.mkdir(parents=True, exist_ok=True)
        quantized(file, "F16").rename(half)
        command = [python, "-m", "tools.bench.peers.openvino_model", str(model), str(half), str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise RuntimeError(f"OpenVINO does not convert the model: {reason[-1] if reason else error!r}") from error
        shutil.copyfile(model / _TOKENIZER, folder / _TOKENIZER)
        shutil.rmtree(half.parent)
    return folder
