"""Measure ResNet-50 on JPEG files of 500 x 375 beside a hand-written server, on one core.

The weights are random: the time of the work does not depend on them. The added time of the server is measured
with a graph that computes almost nothing on the same input, because ResNet-50 alone varies by more.
"""

import io
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageFilter

from tools.bench.peers.start import enter, enter_peer, torchvision
from tools.bench.shared import wrk
from tools.bench.shared.models import write_image_model
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_SIZE = (500, 375)
_ROUNDS = 5
_SECONDS = 6
_ADDED_REQUESTS = 100
_CONNECTIONS = 8
_WARM_UP_REQUESTS = 20
_BOUNDARY = "roundhouse"
_FORM = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
_JPEG = {"content-type": "image/jpeg"}
_PEER = "FastAPI + Pillow + torchvision + ONNX Runtime"

Loads = Mapping[str, list[wrk.Load]]


@dataclass(frozen=True, slots=True)
class _Way:
    """One server and its request, paused unless it is under load."""

    server: RunningServer
    path: str
    body: bytes
    headers: Mapping[str, str]

    def press(self, connections: int, seconds: int) -> wrk.Load:
        with self.server.awake():
            return wrk.press(self.server, self.path, self.body, connections, seconds, self.headers)

    def answer(self) -> Any:
        with self.server.awake():
            connection = self.server.connection
            connection.request("POST", self.path, self.body, dict(self.headers))
            return json.loads(connection.getresponse().read())


def measure_images(folder: Path) -> list[Row]:
    """Return the rows of the CPU that the server adds, and of throughput and p99 at 8 connections."""
    if not wrk.is_installed():
        print(wrk.MISSING, file=sys.stderr)
        return [Row("JPEG files of 500 x 375", "-", compared=wrk.MISSING)]
    file = photo()
    config = _write_models(folder)
    with _ways(folder, config, file) as ways:
        added = _added_ms(folder, ways["means"])
        loads = _measured({name: way for name, way in ways.items() if name != "means"})
    return [_added_row(added, len(file)), *_load_rows(loads)]


def photo() -> bytes:
    """Return a JPEG file of 500 x 375 with the spectrum of a photo: noise, blurred at several scales."""
    random = np.random.default_rng(0)
    total = np.zeros((_SIZE[1], _SIZE[0], 3), np.float32)
    for scale in (1, 2, 4, 8, 16, 32, 64):
        noise = Image.fromarray(random.integers(0, 256, total.shape, np.uint8))
        total += (np.asarray(noise.filter(ImageFilter.GaussianBlur(scale)), np.float32) - 128) * scale
    total = np.clip(128 + total * (50 / total.std()), 0, 255)
    file = io.BytesIO()
    Image.fromarray(total.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_resnet(folder: Path) -> None:
    """Write ResNet-50 of transformers with random weights: `pixel_values` float32 [N, 3, 224, 224] → `logits`."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    network = ResNetForImageClassification(ResNetConfig(num_labels=1000, return_dict=False)).eval()
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # The export takes the checks of shapes for computations.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, 3, 224, 224),),
            str(folder / "model.onnx"),
            input_names=["pixel_values"],
            output_names=["logits"],
            dynamic_axes={"pixel_values": {0: "n"}, "logits": {0: "n"}},
            opset_version=17,
            dynamo=False,
        )
    (folder / "labels.txt").write_text("".join(f"label {index}\n" for index in range(1000)), encoding="utf-8")


def _write_models(folder: Path) -> Path:
    """Write both graphs and a config; return its file."""
    write_resnet(folder / "resnet")
    (folder / "means").mkdir(exist_ok=True)
    write_image_model(folder / "means" / "model.onnx")
    lines = ["[performance]", "intra_op_threads = 1"]
    for name in ("resnet", "means"):
        lines += ["[[models.onnx_models]]", f'name = "{name}"', f'path = "{folder / name}"']
        lines += ["[models.onnx_models.image]", 'resize = "shortest_edge"', "size = 256", "crop = 224"]
        lines += ["mean = [0.485, 0.456, 0.406]", "std = [0.229, 0.224, 0.225]"]
    config = folder / "images.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


@contextmanager
def _ways(folder: Path, config: Path, file: bytes) -> Iterator[dict[str, _Way]]:
    """Start both servers. Raises RuntimeError if they disagree about the labels."""
    head = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    form = head.encode() + file + f"\r\n--{_BOUNDARY}--\r\n".encode()
    resnet = folder / "resnet"
    with ExitStack() as stack:
        ours = enter(stack, roundhouse(config=config))
        ways = {
            "ours": _Way(ours, "/models/resnet/infer?top_k=5", file, _JPEG),
            "ours, form": _Way(ours, "/models/resnet/infer", form, _FORM),
            "means": _Way(ours, "/models/means/infer", file, _JPEG),
        }
        peer = enter_peer(stack, _PEER, torchvision(resnet / "model.onnx", resnet / "labels.txt"))
        if peer is not None:
            ways[_PEER] = _Way(peer, "/infer", form, _FORM)
            _check(ways["ours"].answer()["predictions"][0], ways[_PEER].answer()["predictions"])
        yield ways


def _check(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Raise RuntimeError unless both servers give the best labels about the same scores."""
    scores = {each["label"]: each["score"] for each in theirs}
    if not all(abs(scores.get(each["label"], 0) - each["score"]) < 0.02 for each in ours[:1]):
        raise RuntimeError(f"the answers differ: {ours}, {theirs}")


def _added_ms(folder: Path, way: _Way) -> list[float]:
    """Return the CPU milliseconds of the server for each request beyond the model's own, by round."""
    own_ms = _own_ms(folder / "means" / "model.onnx")
    figures = []
    with way.server.awake():
        for round_number in range(num_rounds(_ROUNDS) + 1):
            before_s = way.server.cpu_s()
            for _ in range(_ADDED_REQUESTS):
                way.server.connection.request("POST", way.path, way.body, dict(way.headers))
                way.server.connection.getresponse().read()
            if round_number:
                figures.append((way.server.cpu_s() - before_s) / _ADDED_REQUESTS * 1e3 - own_ms)
    return figures


def _own_ms(graph: Path) -> float:
    """Return the CPU milliseconds of one row by ONNX Runtime alone."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    pixels = {session.get_inputs()[0].name: np.zeros((1, 3, 224, 224), np.float32)}
    for _ in range(20):
        session.run(None, pixels)
    before_s = time.process_time()
    for _ in range(200):
        session.run(None, pixels)
    return (time.process_time() - before_s) / 200 * 1e3


def _measured(ways: Mapping[str, _Way]) -> Loads:
    """Warm up, then measure the rounds."""
    for way in ways.values():
        for _ in range(_WARM_UP_REQUESTS):
            way.answer()
    presses = {name: partial(way.press, _CONNECTIONS, _SECONDS) for name, way in ways.items()}
    return in_turn(presses, num_rounds(_ROUNDS))


def _added_row(added: list[float], num_bytes: int) -> Row:
    return Row(
        f"JPEG of 500 x 375 ({num_bytes / 1000:.0f} kB): server CPU a request beyond the model's",
        f"{median(added):.2f} ms",
        "≤ 3 ms",
        "ONNX Runtime alone, on a graph that computes almost nothing",
    )


def _load_rows(loads: Loads) -> list[Row]:
    rows = []
    for name, what in (("ours", "raw body"), ("ours, form", "form")):
        beside, late = "-", "-"
        if _PEER in loads:
            times = ratio(_values(loads, name, "per_second"), _values(loads, _PEER, "per_second"))
            fewer = ratio(_values(loads, _PEER, "p99_ms"), _values(loads, name, "p99_ms"))
            theirs_ms = _median(loads, _PEER, "cpu_us") / 1e3
            rate = _median(loads, _PEER, "per_second")
            beside = f"{_PEER} {rate:.1f} req/s, {theirs_ms:.1f} ms CPU: {times:.2f} times"
            late = f"{_median(loads, _PEER, 'p99_ms'):.0f} ms: {fewer:.2f} times"
        cpu_ms = _median(loads, name, "cpu_us") / 1e3
        figure = f"{_median(loads, name, 'per_second'):.1f} req/s, {cpu_ms:.1f} ms CPU a request"
        rows.append(Row(f"ResNet-50, {what}, one core, 8 connections", figure, "≥ 1.5 times", beside))
        rows.append(Row("the same: p99", f"{_median(loads, name, 'p99_ms'):.0f} ms", "≥ 2 times", late))
    return rows


def _values(loads: Loads, name: str, field: str) -> list[float]:
    return [getattr(load, field) for load in loads[name]]


def _median(loads: Loads, name: str, field: str) -> float:
    return median(_values(loads, name, field))
