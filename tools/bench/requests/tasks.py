"""Measure tasks of transformers beside a hand-written endpoint and the pipeline alone, on one core.

The weights are random: the time of the work does not depend on them.
"""

import asyncio
import io
import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from tools.bench.peers.start import enter, enter_peer, pipeline_fastapi
from tools.bench.requests.images import photo
from tools.bench.shared.cores import LOAD_CORES, SERVER_CORES, on_cores
from tools.bench.shared.corpus import mixed_texts
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import ROOT, RunningServer, roundhouse
from tools.bench.shared.table import Row

_CALLERS = 16
_ROUNDS = 3
_SIDE = 320
_PEER = "FastAPI + transformers' pipeline"


@dataclass(frozen=True, slots=True)
class _Task:
    """A task, the name of its model, and how many requests are measured in a round."""

    name: str
    what: str
    count: int


_TASKS = (
    _Task("token-classification", "names in texts, MiniLM's size", 320),
    _Task("object-detection", "detector of 300 queries, 320 pixels", 32),
    _Task("image-classification", "ViT-base", 32),
)


def measure_tasks(folder: Path, minilm: Path) -> list[Row]:
    """Return the rows of three tasks: rates at 16 callers beside both references."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_names(folder / "token-classification", minilm)
    _write_detector(folder / "object-detection")
    _write_vit(folder / "image-classification")
    return [row for task in _TASKS for row in _rows(folder, task)]


def _rows(folder: Path, task: _Task) -> list[Row]:
    path = folder / task.name
    bodies = _bodies(task)
    with ExitStack() as stack:
        ours = enter(stack, roundhouse(config=_config(folder, task.name)))
        peer = enter_peer(stack, _PEER, pipeline_fastapi(path, task.name))
        ways: dict[str, Callable[[], float]] = {
            "ours": partial(_rate, ours, f"/models/{task.name}/infer", bodies),
            "alone": partial(_alone, path, task, folder),
        }
        if peer is not None:
            ways["peer"] = partial(_rate, peer, "/infer", bodies)
        rates = in_turn(ways, num_rounds(_ROUNDS))
    rate = median(rates["ours"])
    rows = [
        Row(
            f"{task.what}, one core, {_CALLERS} callers",
            f"{rate:.1f} /s",
            "≥ 1.0 times",
            f"`pipeline(batch_size=16)` in process {median(rates['alone']):.1f} /s: "
            f"{ratio(rates['ours'], rates['alone']):.2f} times",
        )
    ]
    if peer is not None:
        rows.append(
            Row(
                "the same",
                f"{rate:.1f} /s",
                "≥ 2.0 times",
                f"{_PEER} {median(rates['peer']):.1f} /s: {ratio(rates['ours'], rates['peer']):.2f} times",
            )
        )
    return rows


def _bodies(task: _Task) -> list[bytes]:
    """Return the JSON bodies of a round."""
    if task.name == "token-classification":
        texts = mixed_texts()
        return [json.dumps({"text": texts[number % len(texts)]}).encode() for number in range(task.count)]
    return [json.dumps({"image": b64encode(_photo()).decode()}).encode()] * task.count


def _photo() -> bytes:
    """Return a photo whose sides are those that the processors give it, so that decoding is a small part."""
    file = io.BytesIO()
    Image.open(io.BytesIO(photo())).resize((_SIDE, _SIDE)).save(file, "JPEG", quality=90)
    return file.getvalue()


def _rate(server: RunningServer, path: str, bodies: list[bytes]) -> float:
    requests = [request_of(path, body) for body in bodies]
    with server.awake(), on_cores(LOAD_CORES):
        return len(requests) / asyncio.run(closed_loop(server.port, requests, _CALLERS, len(requests), _CALLERS))


def _alone(path: Path, task: _Task, folder: Path) -> float:
    """Return the inputs per second of the pipeline in a process of its own."""
    inputs = folder / f"{task.name}.json"
    inputs.write_text(json.dumps([json.loads(body) for body in _bodies(task)]), encoding="utf-8")
    command = [sys.executable, "-m", "tools.bench.requests.tasks", str(path), task.name, str(inputs)]
    with on_cores(SERVER_CORES):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    return float(done.stdout.split()[-1])


def _config(folder: Path, name: str) -> Path:
    config = folder / f"{name}.toml"
    config.write_text(
        "[performance]\nintra_op_threads = 1\n"
        f'[[models.torch_models]]\nname = "{name}"\npath = "{folder / name}"\nmax_batch_size = {_CALLERS}\n',
        encoding="utf-8",
    )
    return config


def _write_names(folder: Path, minilm: Path) -> None:
    import shutil

    import torch
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        num_labels=9,
    )  # fmt: skip
    BertForTokenClassification(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / name, folder / name)


def _write_detector(folder: Path) -> None:
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor, ResNetConfig

    torch.manual_seed(0)
    config = DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, num_queries=300, num_labels=91,
        backbone_config=ResNetConfig(out_features=["stage4"]),
    )  # fmt: skip
    DetrForObjectDetection(config).save_pretrained(folder)
    DetrImageProcessor(size={"shortest_edge": _SIDE, "longest_edge": 2 * _SIDE}).save_pretrained(folder)


def _write_vit(folder: Path) -> None:
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(num_labels=1000)).save_pretrained(folder)
    ViTImageProcessor().save_pretrained(folder)


def _run_alone(folder: str, task: str, file: str) -> None:
    """Print the inputs per second of the pipeline, in batches of 16 on one thread."""
    from base64 import b64decode

    import torch
    from transformers import pipeline

    torch.set_num_threads(1)
    model: Any = pipeline(task, model=folder, device="cpu")
    bodies = json.loads(Path(file).read_text(encoding="utf-8"))
    files = [body.get("text") or b64decode(body["image"]) for body in bodies]

    def read(given: Any) -> Any:
        return given if isinstance(given, str) else Image.open(io.BytesIO(given)).convert("RGB")

    model([read(given) for given in files[:_CALLERS]], batch_size=_CALLERS)
    started_s = time.perf_counter()
    model([read(given) for given in files], batch_size=_CALLERS)
    print(len(files) / (time.perf_counter() - started_s))


if __name__ == "__main__":
    _run_alone(*sys.argv[1:])
