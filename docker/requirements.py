"""What an image installs: `python requirements.py cpu|gpu all|onnx` prints it as pip reads it, out of pyproject.toml.

The versions are in constraints.txt. Needs nothing but Python: it runs before anything is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

ONLY_PYTORCH = {"jinja2", "llguidance", "safetensors", "torch", "transformers"}
"""Of the dependencies, those that a server without PyTorch models never imports."""


def requirements(project: Path, device: str, frameworks: str) -> list[str]:
    """The requirement lines of an image. `project`: pyproject.toml; `device`: `cpu` or `gpu`; `frameworks`: `all` or
    `onnx`. Raises ValueError for another.
    """
    if device not in ("cpu", "gpu"):
        raise ValueError(f'"{device}" is no device; there are cpu and gpu')
    if frameworks not in ("all", "onnx"):
        raise ValueError(f'FRAMEWORKS="{frameworks}"; there are all and onnx')
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines: list[str] = declared["dependencies"] + declared["optional-dependencies"][device]
    if frameworks == "all":
        return lines
    lines = [line for line in lines if name_of(line) not in ONLY_PYTORCH]
    # CUDA and cuDNN lie in wheels that torch brings; without it ONNX Runtime has to ask for them itself.
    return [line.replace("onnxruntime-gpu", "onnxruntime-gpu[cuda,cudnn]") for line in lines]


def name_of(requirement: str) -> str:
    """The package that a requirement line is about."""
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
