"""Check that an unload gives memory back, and that a model that does not fit is refused and harms nothing else."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory.sizes import format_size
from tools.bench.shared.language_models import BILLION, SMALL, save_llama
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row
from tools.gpu_kit.minilm import write_minilm

_CYCLES = 5
_ROOM_BYTES = 768 * 1024 * 1024
"""Free bytes of the GPU while a larger model is loaded."""
_WAIT_S = 10.0


def measure_memory(files: Path, work: Path, device: str) -> Iterator[Row]:
    """Yield the rows. Raises RuntimeError if the server does not do what a row says."""
    shape, dtype = (BILLION, "bfloat16") if device == "cuda" else (SMALL, "float32")
    large = save_llama(work / f"{shape.name}-memory", shape, dtype, device)
    small = write_minilm(files, work / "minilm")
    config = work / "memory.toml"
    entries = (
        f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\ndevice = "{device}"\nload = "{load}"\n'
        for name, path, load in (("large", large, "lazy"), ("small", small, "startup"))
    )
    # Without a GPU nothing can be filled, so the limit is the server's own.
    limit = "" if device == "cuda" else f'[memory]\nmax_model_memory = "{_model_bytes(small) * 5 // 4}"\n'
    config.write_text(limit + "\n".join(entries), encoding="utf-8")
    with roundhouse(config=config, cores=None) as server:
        if device == "cuda":
            yield _given_back(server)
        with _filled(device):
            yield _refused(server)
        if device == "cuda":
            _order(server, "load", 200)
            yield Row("after another process freed its memory", "the same load succeeds")


def _given_back(server: RunningServer) -> Row:
    """Load and unload several times; the first cycle makes the driver's context and the libraries' workspaces."""
    free: list[int] = []
    taken = 0
    for _ in range(_CYCLES):
        _order(server, "load", 200)
        loaded = _free_bytes(server)
        _order(server, "unload", 200)
        free.append(_free_bytes(server))
        taken = free[-1] - loaded
    lost = free[0] - free[-1]
    if taken <= 0 or lost > taken // 100:
        raise RuntimeError(f"after {_CYCLES} loads and unloads {format_size(max(lost, 0))} are not given back")
    return Row(
        f"free memory after {_CYCLES} unloads, against after the first",
        f"{max(lost, 0) / 2**20:.0f} MiB less",
        "≤ 1 % of the model",
        f"the model takes {format_size(taken)}",
    )


def _refused(server: RunningServer) -> Row:
    status, body = _request(server, "POST", "/models/large/load")
    code = body.get("error", {}).get("code")
    if (status, code) != (507, "out_of_memory"):
        raise RuntimeError(f"expected 507 out_of_memory for a model that does not fit, got {status} {body}")
    embeddings = server.post("/models/small/infer", json.dumps({"text": ["still here"] * 64}).encode())["embeddings"]
    if len(embeddings) != 64:
        raise RuntimeError("the loaded model no longer answers")
    return Row(
        "a model that does not fit", "507 out_of_memory; the loaded model answers", compared=body["error"]["message"]
    )


@contextmanager
def _filled(device: str) -> Iterator[None]:
    """Take the device's memory in this process, up to _ROOM_BYTES."""
    if device != "cuda":
        yield
        return
    import torch

    free_bytes, _ = torch.cuda.mem_get_info()
    taken = torch.empty(max(0, free_bytes - _ROOM_BYTES), dtype=torch.uint8, device=device)
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


def _order(server: RunningServer, order: str, expected: int) -> None:
    status, body = _request(server, "POST", f"/models/large/{order}")
    if status != expected:
        raise RuntimeError(f"{order} answered {status}: {body}")


def _request(server: RunningServer, method: str, path: str) -> tuple[int, dict[str, Any]]:
    server.connection.close()  # the server has closed it if the previous order took long
    server.connection.request(method, path)
    answer = server.connection.getresponse()
    return answer.status, json.loads(answer.read())


def _free_bytes(server: RunningServer) -> int:
    """Return the free bytes of the GPU when two readings agree: the driver frees memory a little later."""
    until_s = time.monotonic() + _WAIT_S
    before = -1
    while True:
        _, health = _request(server, "GET", "/health")
        free: int = next(each["free_bytes"] for each in health["devices"] if each["id"].startswith("cuda"))
        if free == before or time.monotonic() > until_s:
            return free
        before = free
        time.sleep(0.2)


def _model_bytes(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size
