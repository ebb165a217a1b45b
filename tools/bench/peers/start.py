"""Start the peers, on the core of the server unless noted."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tools.bench.peers.install import python_of
from tools.bench.shared.servers import RunningServer, started


def plain_fastapi(model: Path) -> AbstractContextManager[RunningServer]:
    """Start the hand-written endpoint: `POST /infer` with `input_data`."""
    return _module(sys.executable, "plain_fastapi", [str(model)], "/health")


def sentence_transformers(folder: Path) -> AbstractContextManager[RunningServer]:
    """Start the hand-written endpoint for texts: `POST /infer` with `text`."""
    return _module(sys.executable, "sentence_transformers_fastapi", [str(folder)], "/health")


def pipeline_fastapi(folder: Path, task: str) -> AbstractContextManager[RunningServer]:
    """Start the hand-written endpoint for a task: `POST /infer` with `text` or `image`."""
    return _module(sys.executable, "pipeline_fastapi", [str(folder), task], "/health")


def no_op() -> AbstractContextManager[RunningServer]:
    """Start uvicorn's floor: read any body and answer a constant on every path."""
    return _module(sys.executable, "no_op", [], "/")


@contextmanager
def litserve(kind: str, model: Path) -> Iterator[RunningServer]:
    """Start LitServe with `POST /infer`. `kind`: vector, onnx or torch. Raises RuntimeError if it does not run."""
    with _module(str(python_of("litserve")), "litserve_server", [kind, str(model)], "/health") as server:
        yield server


@contextmanager
def mlserver(model: Path) -> Iterator[RunningServer]:
    """Start MLServer with `POST /v2/models/vector/infer`. Raises RuntimeError if it does not run."""
    with _module(str(python_of("mlserver")), "mlserver_runtime", [str(model)], "/v2/health/ready") as server:
        yield server


@contextmanager
def torchvision(graph: Path, labels: Path) -> Iterator[RunningServer]:
    """Start the hand-written endpoint for images: `POST /infer` with a form. Raises RuntimeError if it does not run."""
    arguments = [str(graph), str(labels)]
    with _module(str(python_of("torchvision")), "torchvision_server", arguments, "/health") as server:
        yield server


@contextmanager
def transformers_serve(folder: Path, *, continuous_batching: bool) -> Iterator[RunningServer]:
    """Start `transformers serve` with `POST /v1/completions` in fp32, on all cores.

    Raises RuntimeError if it does not run.
    """
    python = str(python_of("transformers_serve"))
    command = [python, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    command += ["--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}"]
    if continuous_batching:
        # The default takes most of the machine's memory and is not faster.
        command += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"]
    with started(command, "/health", None, {"HF_HUB_OFFLINE": "1"}) as server:
        yield server


def enter(stack: ExitStack, server: AbstractContextManager[RunningServer]) -> RunningServer:
    """Start the server paused, until the stack ends."""
    running = stack.enter_context(server)
    running.pause()
    return running


def enter_peer(stack: ExitStack, name: str, server: AbstractContextManager[RunningServer]) -> RunningServer | None:
    """Start a peer; if it does not run here, print the reason and return None: its figure is then a dash."""
    try:
        return enter(stack, server)
    except RuntimeError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None


def _module(python: str, name: str, arguments: list[str], ready_path: str) -> AbstractContextManager[RunningServer]:
    return started([python, "-m", f"tools.bench.peers.{name}", *arguments, "{port}"], ready_path)
