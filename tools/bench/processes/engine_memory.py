"""Measure the memory of a model's process without the model."""

from pathlib import Path

from tools.bench.processes.engine_configs import Entry, engine_of, write_config
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_MB = 1e6


def measure_engine_memory(folder: Path, vector: Path, minilm: Path) -> list[Row]:
    """Load a model in a process; count its memory (PSS of the kernel) without the bytes of the weights.

    An encoder: a model that generates also has a cache of keys and values, which is part of the model.
    """
    weights = (minilm / "model.safetensors").stat().st_size
    return [
        _row(folder, "ONNX", Entry("small", vector, isolated=True), vector.stat().st_size, "≤ 80 MB"),
        _row(folder, "PyTorch", Entry("minilm", minilm, "torch", isolated=True), weights, "≤ 250 MB"),
    ]


def _row(folder: Path, label: str, entry: Entry, weight_bytes: int, target: str) -> Row:
    with roundhouse(config=write_config(folder / "memory.toml", [entry]), cores=None) as server:
        sizes = _sizes(engine_of(server, entry.name).pid)
    return Row(
        f"process of a loaded model ({label}): memory (PSS) without the weights",
        f"{(sizes['Pss'] - weight_bytes) / _MB:.0f} MB",
        target,
        f"private {(sizes['Private_Clean'] + sizes['Private_Dirty'] - weight_bytes) / _MB:.0f} MB, resident "
        f"{(sizes['Rss'] - weight_bytes) / _MB:.0f} MB",
    )


def _sizes(pid: int) -> dict[str, int]:
    """Return the sums over all mappings in bytes, by the kernel's names."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
