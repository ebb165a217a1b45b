"""Run one part of the GPU kit and add its figures to `results.json` and `results.md`.

`python -m tools.gpu_kit.measure PART --device cuda|cpu --minilm FOLDER --work FOLDER --results FOLDER`
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.bench.shared.table import Row, table_lines
from tools.gpu_kit.generation import measure_generation
from tools.gpu_kit.gpu_memory import measure_memory
from tools.gpu_kit.gpu_tests import run_tests
from tools.gpu_kit.graphs import measure_graphs
from tools.gpu_kit.images import measure_images
from tools.gpu_kit.steps import measure_steps
from tools.gpu_kit.texts import measure_texts


def main() -> int:
    """Return 1 if a test failed, or no figure could be measured. Rows are written as soon as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_kit.measure")
    parser.add_argument("part", choices=["tests", "steps", "generation", "texts", "images", "graphs", "memory"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    for folder in ("minilm", "work", "results"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    machine = describe_machine()
    if arguments.device == "cuda" and machine["gpu"] is None:
        print("gpu-kit: torch finds no CUDA device; --cpu tries the kit without one", file=sys.stderr)
        return 1
    report = Report(arguments.results, machine)
    report.begin(arguments.part, arguments.device)
    work, device = arguments.work, arguments.device
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "tests": lambda: run_tests(device),
        "steps": lambda: measure_steps(work, device),
        "generation": lambda: measure_generation(work, device),
        "texts": lambda: measure_texts(arguments.minilm, work, device),
        "images": lambda: measure_images(work, device),
        "graphs": lambda: measure_graphs(work, device),
        "memory": lambda: measure_memory(arguments.minilm, work, device),
    }
    try:
        for row in parts[arguments.part]():
            report.add(arguments.part, row)
            print(f"{row.what}: {row.figure} ({row.compared})", flush=True)
    except Exception as error:
        report.end(arguments.part, time.perf_counter() - started_s, f"{type(error).__name__}: {error}")
        raise
    report.end(arguments.part, time.perf_counter() - started_s, None)
    return 0


class Report:
    """`results.json`: the machine, and of each part its rows, seconds, device and error; `results.md`: a table."""

    def __init__(self, folder: Path, machine: dict[str, Any]) -> None:
        """Read what earlier parts wrote on the same machine; the report of another machine is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        content: dict[str, Any] = {}
        if (file := folder / "results.json").is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
        is_same = content.get("machine") == machine
        self._parts: dict[str, dict[str, Any]] = content["parts"] if is_same else {}
        self._machine = machine

    def begin(self, part: str, device: str) -> None:
        """Forget the part's earlier figures."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._parts[part] = {"began": now, "device": device, "rows": [], "seconds": None, "error": "not finished"}
        self._write()

    def add(self, part: str, row: Row) -> None:
        self._parts[part]["rows"].append(asdict(row))
        self._write()

    def end(self, part: str, seconds: float, error: str | None) -> None:
        self._parts[part] |= {"seconds": round(seconds, 1), "error": error}
        self._write()

    def _write(self) -> None:
        """Replace both files at once: a part that is killed leaves whole ones."""
        content = json.dumps({"machine": self._machine, "parts": self._parts}, indent=2) + "\n"
        for name, text in (("results.json", content), ("results.md", "\n".join(self._lines()) + "\n")):
            new = self._folder / f"{name}.new"
            new.write_text(text, encoding="utf-8")
            new.replace(self._folder / name)

    def _lines(self) -> Iterator[str]:
        yield ", ".join(f"{name}: {value}" for name, value in self._machine.items())
        yield ""
        yield from table_lines(Row(**row) for part in self._parts.values() for row in part["rows"])
        for name, part in self._parts.items():
            if part["error"] is not None:
                yield f"\n{name}: {part['error']}"


def describe_machine() -> dict[str, Any]:
    """Return the GPU (None without one), its bytes, CPU cores, and the versions that matter."""
    import onnxruntime
    import torch
    import transformers

    has_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if has_gpu else None,
        "cuda": torch.version.cuda,
        "cpu": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
