"""Measure loads and unloads of MiniLM: time, freed memory, and the savings of mapped weights.

`python -m tools.bench.limits.loads onnx|torch FOLDER true|false` loads once in a process of its own, with mapping or
without, then a few times more; it prints the seconds of those and the bytes of the first one's peak as JSON.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from memory.allocator import give_back_freed_memory, keep_freed_memory
from memory.host import resident_bytes
from tools.bench.shared.models import write_vector_model
from tools.bench.shared.servers import ROOT, RunningServer, roundhouse
from tools.bench.shared.table import Row, percent

_CYCLES = 50
_CHILD_ROUNDS = 5
_TEXTS = ["A roundhouse is where engines wait for their turn."] * 16
_NAMES = {"onnx": "ONNX", "torch": "PyTorch"}


def measure_loads(folder: Path, models: Path) -> list[Row]:
    """`models`: the folder of both MiniLMs."""
    paths = {"onnx": models / "minilm-onnx", "torch": models / "minilm"}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(folder, name)) for name in paths}
        cycles = {name: _Cycles(server, name, paths[name]) for name, server in servers.items()}
        for _ in range(_CYCLES):
            for each in cycles.values():
                each.turn()
    rows = [row for name in paths for row in cycles[name].rows()]
    external = folder / "minilm-external"
    _with_external_data(paths["onnx"], external)
    rows += _mapping_rows("onnx", external, "MiniLM (ONNX, external data)")
    return rows + _mapping_rows("torch", paths["torch"], "MiniLM (PyTorch)")


class _Cycles:
    """Load and unload MiniLM in a server that ran a small model of the same framework."""

    def __init__(self, server: RunningServer, name: str, path: Path) -> None:
        self._server, self._name = server, name
        self._resident = [server.resident_bytes()]  # before the first load, and after each unload
        self._loaded: list[int] = []
        self._load_s: list[float] = []
        framework = "onnx" if name == "onnx" else "pytorch"
        entry = {"framework": framework, "name": "minilm", "path": str(path)}
        server.connection.request("POST", "/models", json.dumps(entry), {"content-type": "application/json"})
        answer = server.connection.getresponse()
        if answer.status != 201:
            raise RuntimeError(f"the model was not loaded: {answer.read()!r}")
        answer.read()
        self._ask_and_unload()

    def turn(self) -> None:
        started_s = time.perf_counter()
        self._server.post("/models/minilm/load", b"")
        self._load_s.append(time.perf_counter() - started_s)
        self._ask_and_unload()

    def rows(self) -> list[Row]:
        name = _NAMES[self._name]
        taken, back = self._loaded[0] - self._resident[0], self._loaded[0] - self._resident[1]
        again = [
            (loaded - after) / (loaded - before)
            for before, loaded, after in zip(self._resident[1:], self._loaded[1:], self._resident[2:], strict=False)
        ]
        fifth, last = self._resident[5], self._resident[-1]
        return [
            Row(f"MiniLM ({name}): load to ready, warm-up included", f"{median(self._load_s):.2f} s", "≤ 0.3 s"),
            Row(
                f"MiniLM ({name}): memory that an unload gives back",
                f"{percent(median(again))} of what the load took",
                "≥ 95 %",
                f"the first load in the process {percent(back / taken)} of {taken / 1e6:.0f} MB",
            ),
            Row(
                f"MiniLM ({name}): resident after {_CYCLES} loads and unloads",
                f"{last / 1e6:.0f} MB",
                "within 10 % of after the fifth",
                f"after the fifth {fifth / 1e6:.0f} MB",
            ),
        ]

    def _ask_and_unload(self) -> None:
        self._server.post("/infer", json.dumps({"model_name": "minilm", "text": _TEXTS}).encode())
        self._loaded.append(self._server.resident_bytes())
        self._server.post("/models/minilm/unload", b"")
        self._resident.append(self._server.resident_bytes())


@contextmanager
def _server(folder: Path, name: str) -> Iterator[RunningServer]:
    """Start a server with a small model of the framework."""
    small = folder / f"small-{name}"
    small.mkdir()
    if name == "onnx":
        write_vector_model(small / "model.onnx")
    else:
        from tests.support.models.torch_folders import save_embedder

        save_embedder(small)
    table = "onnx_models" if name == "onnx" else "torch_models"
    config = folder / f"loads-{name}.toml"
    config.write_text(
        f'[models]\nroots = ["{ROOT / "models"}"]\n[performance]\nintra_op_threads = 1\n'
        f'[[models.{table}]]\nname = "small"\npath = "{small}"\n'
    )
    with roundhouse(config=config) as server:
        yield server


def _with_external_data(source: Path, folder: Path) -> None:
    """Write a copy of the model with its weights in a separate file."""
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    graph = onnx.load(str(source / "model.onnx"))
    onnx.save(graph, str(folder / "model.onnx"), save_as_external_data=True, location="model.onnx.data")


def _mapping_rows(name: str, folder: Path, what: str) -> list[Row]:
    mapped, read = _in_a_process(name, folder, "true"), _in_a_process(name, folder, "false")
    return [
        Row(
            f"{what}: peak of a load, weights mapped",
            f"{mapped['peak'] / 1e6:.0f} MB, {mapped['seconds']:.2f} s",
            "less than read",
            f"read: {read['peak'] / 1e6:.0f} MB, {read['seconds']:.2f} s",
        )
    ]


def _in_a_process(name: str, folder: Path, mapping: str) -> Any:
    command = [sys.executable, "-m", "tools.bench.limits.loads", name, str(folder), mapping]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)


def _peak_bytes() -> int:
    """Return the peak of the resident set of this process; that of getrusage may be the parent's."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match is not None
    return int(match[1]) * 1024


def main(name: str, folder: str, mapping: str) -> None:
    """Run in a process of its own."""
    from tests.frameworks.models.loading import load_onnx, load_torch

    keep_freed_memory()
    load = load_onnx if name == "onnx" else load_torch
    if name == "onnx":
        import frameworks.onnx.registry
    else:
        import frameworks.pytorch.registry  # noqa: F401
    seconds = []
    before = resident_bytes()
    peak = 0
    for _ in range(1 + _CHILD_ROUNDS):
        started_s = time.perf_counter()
        model = load(Path(folder), enable_memory_mapping=mapping == "true")
        model.warm_up()
        seconds.append(time.perf_counter() - started_s)
        peak = peak or _peak_bytes() - before
        model.close()
        del model
        give_back_freed_memory()
    print(json.dumps({"seconds": median(seconds[1:]), "peak": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
