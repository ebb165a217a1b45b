"""Measure many texts in one request, and the start time of the embedded models."""

import time
from pathlib import Path

import orjson

from tools.bench.shared.corpus import short_texts
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_TEXTS = 10_000


def measure_texts(models: Path) -> list[Row]:
    """Send 10,000 texts of 2 to 6 words in one request to each MiniLM, on all cores."""
    texts = short_texts(_TEXTS)
    rows = []
    for name, label in (("minilm-onnx", "ONNX"), ("minilm", "PyTorch")):
        with roundhouse([str(models / name)], cores=None) as server:
            ready_s = time.perf_counter() - server.started_s
            started_s = time.perf_counter()
            answer = server.post(f"/models/{name}/infer", orjson.dumps({"text": texts}))
            took_s = time.perf_counter() - started_s
        if len(answer["embeddings"]) != _TEXTS:
            raise RuntimeError(f"{name} answered {len(answer['embeddings'])} of {_TEXTS} texts")
        rows.append(Row(f"MiniLM ({label}): process start to ready", f"{ready_s:.1f} s"))
        rows.append(
            Row(f"MiniLM ({label}): {_TEXTS:,} texts of 2 to 6 words in one request", f"{_TEXTS / took_s:.0f} texts/s")
        )
    return rows
