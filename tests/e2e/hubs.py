"""A hub on loopback for servers: its models, and config files with their addresses."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx import helper

from tests.support.hub import Hub, loopback_hub
from tests.support.models.onnx_graphs import identity

TOKEN = "hf_" + "Secret0123456789"
DATA = random.Random(0).randbytes(3 << 20)
"""A file beside a graph that takes long where the hub is slow. The graph does not use it."""
HELD_AFTER = 1 << 20


@contextmanager
def token_hub() -> Iterator[Hub]:
    """Run a hub that answers only requests with TOKEN. Held downloads end with it."""
    with loopback_hub() as hub:
        hub.web.faults.token = TOKEN
        try:
            yield hub
        finally:
            hub.web.faults.go_on.set()


def files(graph: onnx.ModelProto | None = None) -> dict[str, bytes]:
    """Return the files of a repository. `graph`: default x → x."""
    return {
        "model.onnx": (graph or identity()).SerializeToString(),
        "model.onnx_data": DATA,
        "pytorch_model.bin": b"never fetched",
        "model.py": b"never fetched",
    }


def doubled() -> onnx.ModelProto:
    """Return a graph with the inputs and outputs of `identity` that computes x + x."""
    graph = identity()
    del graph.graph.node[:]
    graph.graph.node.append(helper.make_node("Add", ["x", "x"], ["y"]))
    return graph


def entry(name: str, address: str, **keys: str) -> str:
    """Return the entry of an ONNX model. `keys`: further keys, as TOML."""
    more = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[[models.onnx_models]]\nname = "{name}"\npath = "{address}"\n{more}'


def models_table(folder: Path, sources: str = "[]") -> str:
    return f'[models]\ncache_dir = "{folder / "cache"}"\nroots = []\nsources = {sources}\n'


def hold(hub: Hub) -> None:
    """Let downloads wait after HELD_AFTER bytes of a file."""
    hub.web.faults.hold_after = HELD_AFTER


def let_go(hub: Hub) -> None:
    """End the wait of `hold`, for the requests that are held and for all later ones."""
    hub.web.faults.hold_after = None
    hub.web.faults.go_on.set()


def resumed_at(hub: Hub) -> int:
    """Return the offset of the last request for the large file."""
    path = [path for path in hub.downloads() if hub.web.files[path] is DATA or hub.web.files[path] == DATA][-1]
    request = [each for each in hub.web.requests if each.path.partition("?")[0] == path][-1]
    return int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


def environment(hub: Hub, folder: Path) -> dict[str, str]:
    """Return the variables of a process that uses this hub only."""
    return hub.environment | {"HF_HOME": str(folder / "home"), "ROUNDHOUSE_MODELS__CACHE_DIR": str(folder / "cache")}
