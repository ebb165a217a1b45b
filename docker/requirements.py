"""Print the requirements of an image from pyproject.toml: `python requirements.py cpu|gpu all|onnx`.

The versions are in constraints.txt. This script runs before any package is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

ONLY_PYTORCH = {"jinja2", "llguidance", "safetensors", "torch", "transformers"}
"""Dependencies that a server without PyTorch models never imports."""
EXTRAS = ("compiled", "media", "tables", "hub", "s3", "gcs", "azure", "otel")
"""Extras of images with all frameworks: compiled products, files and tables of tasks, sources of models, and traces."""


def requirements(project: Path, device: str, frameworks: str) -> list[str]:
    """Return the requirement lines of an image.

    `project`: pyproject.toml; `device`: `cpu` or `gpu`; `frameworks`: `all` or `onnx`. Raises ValueError.
    """
    if device not in ("cpu", "gpu"):
        raise ValueError(f'device: expected cpu or gpu, got "{device}"')
    if frameworks not in ("all", "onnx"):
        raise ValueError(f'FRAMEWORKS: expected all or onnx, got "{frameworks}"')
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = declared["optional-dependencies"]
    lines: list[str] = declared["dependencies"] + extras[device]
    if frameworks == "all":
        return lines + [line for extra in EXTRAS for line in extras[extra]]
    lines = [line for line in lines if name_of(line) not in ONLY_PYTORCH]
    # torch depends on the wheels of CUDA and cuDNN. Without torch, ONNX Runtime must depend on them.
    return [line.replace("onnxruntime-gpu", "onnxruntime-gpu[cuda,cudnn]") for line in lines]


def name_of(requirement: str) -> str:
    """Return the package name of a requirement line."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found[0].lower()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python requirements.py cpu|gpu all|onnx")
    try:
        print("\n".join(requirements(Path("pyproject.toml"), *sys.argv[1:])))
    except ValueError as error:
        sys.exit(str(error))
