"""The servers that tests share or start."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries, unpadded_entry
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving

Start = Callable[..., RunningServer]
"""start(config, gated=False, is_fork=True, VARIABLE=…) → a server for one test, which may break it; not yet ready."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for all tests that leave it as it is: the embedded models, and a tiny model of every kind."""
    folder = tmp_path_factory.mktemp("server")
    models = EMBEDDED + onnx_entries(folder, ALL_KINDS) + text_entries(folder) + unpadded_entry(folder)
    with serving(folder, models + '[logging]\nrequests = "all"\n', {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Stop all servers of the test at its end. Parameters as of `serving`."""
    with ExitStack() as stack:

        def start_one(config: str, gated: bool = False, is_fork: bool = True, **environ: str) -> RunningServer:
            return stack.enter_context(serving(tmp_path, config, environ, gated, is_fork))

        yield start_one
