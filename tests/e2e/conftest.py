"""The servers that tests share or start."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving


class Start(Protocol):
    """Start a server for one test, which may break it; it is not yet ready. `gated`: see `RunGate`."""

    def __call__(self, config: str, gated: bool = False, **environ: str) -> RunningServer: ...


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for all tests that leave it as it is: the embedded models, and a tiny model of every kind."""
    folder = tmp_path_factory.mktemp("server")
    models = EMBEDDED + onnx_entries(folder, ALL_KINDS) + text_entries(folder)
    with serving(folder, models + '[logging]\nrequests = "all"\n', {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(config, VARIABLE=…) → a server; all servers of the test are stopped at its end."""
    with ExitStack() as stack:

        def start_one(config: str, gated: bool = False, **environ: str) -> RunningServer:
            return stack.enter_context(serving(tmp_path, config, environ, gated))

        yield start_one
