"""The servers beside which this one is measured, each started on the server's core, or where it says so on all."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.bench.peers.install import python_of
from tests.bench.servers import RunningServer, started


def plain_fastapi(model: Path) -> AbstractContextManager[RunningServer]:
    """The endpoint that one would write by hand: `POST /infer` with `input_data`."""
    return _module(sys.executable, "plain_fastapi", [str(model)], "/health")


def sentence_transformers(folder: Path) -> AbstractContextManager[RunningServer]:
    """The same for texts: `POST /infer` with `text`."""
    return _module(sys.executable, "sentence_transformers_fastapi", [str(folder)], "/health")


def no_op() -> AbstractContextManager[RunningServer]:
    """uvicorn's floor: reads any body and answers a constant, to every path."""
    return _module(sys.executable, "no_op", [], "/")


@contextmanager
def litserve(kind: str, model: Path) -> Iterator[RunningServer]:
    """`kind`: vector, onnx or torch. `POST /infer` as the endpoints by hand. Raises RuntimeError where it cannot be."""
    with _module(str(python_of("litserve")), "litserve_server", [kind, str(model)], "/health") as server:
        yield server


@contextmanager
def mlserver(model: Path) -> Iterator[RunningServer]:
    """`POST /v2/models/vector/infer`, the V2 protocol. Raises RuntimeError where it cannot be."""
    with _module(str(python_of("mlserver")), "mlserver_runtime", [str(model)], "/v2/health/ready") as server:
        yield server


@contextmanager
def transformers_serve(folder: Path, *, continuous_batching: bool) -> Iterator[RunningServer]:
    """`POST /v1/completions` in fp32, on all cores. Raises RuntimeError where it cannot be."""
    python = str(python_of("transformers_serve"))
    command = [python, "-m", "transformers.cli.transformers", "serve", str(folder), "--device", "cpu"]
    command += ["--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}"]
    if continuous_batching:
        # Left to itself it takes most of the memory of the machine, and is no faster for it.
        command += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"]
    with started(command, "/health", None, {"HF_HUB_OFFLINE": "1"}) as server:
        yield server


def enter(stack: ExitStack, server: AbstractContextManager[RunningServer]) -> RunningServer:
    """The server, paused, until the stack ends."""
    running = stack.enter_context(server)
    running.pause()
    return running


def enter_peer(stack: ExitStack, name: str, server: AbstractContextManager[RunningServer]) -> RunningServer | None:
    """The same; None, and the reason printed, where the peer does not run here: its figure is then a dash."""
    try:
        return enter(stack, server)
    except RuntimeError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None


def _module(python: str, name: str, arguments: list[str], ready_path: str) -> AbstractContextManager[RunningServer]:
    return started([python, "-m", f"tests.bench.peers.{name}", *arguments, "{port}"], ready_path)
