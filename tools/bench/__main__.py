"""Measure the figures of the manual's benchmark page and print them as a table.

`python -m tools.bench [PART ...]`; without names every part. On two cores the server has one and the load the other.
Rounds of compared servers alternate, and the median is printed. Ratios are more stable than numbers.
"""

import argparse
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tools.bench.extensions.offline import measure_offline
from tools.bench.extensions.pipelines import measure_pipelines
from tools.bench.extensions.ray_data import measure_ray_data
from tools.bench.extensions.ray_serve import measure_ray
from tools.bench.extensions.search import measure_search
from tools.bench.limits.connections import measure_connections
from tools.bench.limits.crowded import measure_crowded
from tools.bench.limits.fairness import measure_fairness
from tools.bench.limits.fairness_generation import measure_fairness_generation
from tools.bench.limits.hostile import measure_hostile
from tools.bench.limits.lending import measure_lending
from tools.bench.limits.loads import measure_loads
from tools.bench.limits.overload import measure_overload
from tools.bench.limits.soak import measure_soak
from tools.bench.limits.swaps import measure_swaps
from tools.bench.processes.engines import measure_engines
from tools.bench.processes.isolation import measure_isolation
from tools.bench.processes.isolation_generation import measure_isolation_generation
from tools.bench.processes.neighbours import measure_neighbours
from tools.bench.requests.auth import measure_keys, measure_refusals
from tools.bench.requests.calls import measure_calls
from tools.bench.requests.grpc_requests import measure_grpc
from tools.bench.requests.images import measure_images
from tools.bench.requests.page import measure_page
from tools.bench.requests.requests_cpu import measure_requests
from tools.bench.requests.signatures import measure_signatures
from tools.bench.requests.startup import measure_startup
from tools.bench.requests.static_embeddings import measure_static_embeddings
from tools.bench.requests.tasks import measure_tasks
from tools.bench.requests.text_peers import measure_text_peers
from tools.bench.requests.text_throughput import measure_text_throughput
from tools.bench.requests.texts import measure_texts
from tools.bench.requests.throughput import measure_throughput
from tools.bench.requests.tracing import measure_tracing
from tools.bench.shared.cores import ALL_CORES
from tools.bench.shared.models import write_image_model, write_vector_model
from tools.bench.shared.open_inference import measure_open_inference
from tools.bench.shared.servers import ROOT
from tools.bench.shared.table import Row, print_table
from tools.bench.speech.measure import measure_speech
from tools.bench.text_generation.generation import measure_generation
from tools.bench.text_generation.generation_adapters import measure_generation_adapters
from tools.bench.text_generation.generation_llama_cpp import measure_generation_llama_cpp
from tools.bench.text_generation.generation_on_gpu import measure_generation_on_gpu
from tools.bench.text_generation.generation_prefill import measure_generation_prefill
from tools.bench.text_generation.generation_speculation import measure_draft_model, measure_speculation
from tools.bench.text_generation.quantization import measure_quantization
from tools.bench.text_generation.streams import measure_streams
from tools.bench.text_generation.vision import measure_vision
from tools.bench.text_generation.vision_llama_cpp import measure_vision_llama_cpp

_MODELS = ROOT / "models"


def main() -> int:
    """Return 0 after every figure is printed. Raises if a server gives a wrong answer."""
    # As Ctrl-C: the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder:
        parts = _parts(Path(folder))
        parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure, and print a table.")
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
        chosen = parser.parse_args().parts or list(parts)
        if unknown := [part for part in chosen if part not in parts]:
            parser.error(f"no part {unknown[0]!r}; there are {', '.join(parts)}")
        print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {cpu_model()}, Python {platform.python_version()}")
        if len(ALL_CORES) < 2:
            print("one core only: the load shares it with the servers")
        rows: list[Row] = []
        for part in chosen:
            started_s = time.perf_counter()
            rows += [row for measure in parts[part] for row in measure()]
            print(f"{part}: {time.perf_counter() - started_s:.0f} s", file=sys.stderr)
    print()
    print_table(rows)
    return 0


def _parts(folder: Path) -> dict[str, list[Callable[[], list[Row]]]]:
    """Return the measurements by the name of their part, in the order of the table."""
    image, vector = folder / "image.onnx", folder / "vector.onnx"
    write_image_model(image)
    write_vector_model(vector)
    fairness = [
        lambda: measure_fairness(folder, _MODELS / "minilm-onnx"),
        lambda: measure_fairness_generation(folder),
    ]
    return {
        "page": [lambda: measure_page(vector)],
        "startup": [lambda: measure_startup(vector)],
        "calls": [lambda: measure_calls(folder, _MODELS)],
        "requests": [lambda: measure_throughput(image, vector), lambda: measure_requests(image, vector)],
        "open-inference": [lambda: measure_open_inference(image, vector)],
        "grpc": [lambda: measure_grpc(vector)],
        "texts": [
            lambda: measure_text_throughput(_MODELS),
            lambda: measure_text_peers(_MODELS),
            lambda: measure_texts(_MODELS),
        ],
        "images": [lambda: measure_images(folder / "images")],
        "tasks": [
            lambda: measure_tasks(folder / "tasks", _MODELS / "minilm"),
            lambda: measure_static_embeddings(folder, _MODELS / "minilm"),
        ],
        "pipelines": [lambda: measure_pipelines(folder / "pipelines")],
        "offline": [lambda: measure_offline(folder, _MODELS)],
        "ray-data": [lambda: measure_ray_data(folder, _MODELS)],
        "ray": [lambda: measure_ray(folder, _MODELS)],
        "quantization": [lambda: measure_quantization(_MODELS)],
        "search": [measure_search],
        "isolation": [lambda: measure_isolation(vector, _MODELS / "minilm-onnx")],
        "isolation-generation": [lambda: measure_isolation_generation(folder, vector, _MODELS / "minilm-onnx")],
        "engines": [lambda: measure_engines(folder, image, vector, _MODELS)],
        "generation": [
            lambda: measure_generation(folder),
            lambda: measure_generation_adapters(folder),
            lambda: measure_speculation(folder),
            lambda: measure_draft_model(folder),
            lambda: measure_generation_on_gpu(folder),
        ],
        "speech": [lambda: measure_speech(folder / "speech")],
        "prefill": [lambda: measure_generation_prefill(folder)],
        "llama-cpp": [lambda: measure_generation_llama_cpp(folder)],
        "neighbours": [lambda: measure_neighbours(folder, _MODELS / "minilm")],
        "streams": [lambda: measure_streams(folder)],
        "vision": [lambda: measure_vision(folder)],
        "vision-llama-cpp": [lambda: measure_vision_llama_cpp(folder)],
        "soak": [lambda: measure_soak(folder)],
        "hostile": [lambda: measure_hostile(folder)],
        "overload": [lambda: measure_overload(folder)],
        "connections": [lambda: measure_crowded(folder, vector), lambda: measure_connections(folder, vector)],
        "lending": [lambda: measure_lending(folder, _MODELS), lambda: measure_swaps(folder, _MODELS)],
        "fairness": fairness,
        "auth": [
            lambda: measure_keys(vector),
            lambda: measure_refusals(vector),
            lambda: measure_signatures(vector),
            *fairness,
        ],
        "tracing": [measure_tracing],
        "loads": [lambda: measure_loads(folder, _MODELS)],
    }


def cpu_model() -> str:
    """Return the kernel's name of the processor, or an empty string."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main())
