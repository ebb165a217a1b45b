"""Start servers in trouble, and a Prometheus that scrapes them."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx

from tests.docker.prometheus import RunningPrometheus, program, running_prometheus
from tests.e2e.configs import DIGITS
from tests.e2e.gates import RunGate
from tests.e2e.load import slow_model
from tests.e2e.server import MODELS, WAIT_S, RunningServer, serving, wait_until

CALLERS = 12
QUEUE_BOUND = 4
RUN_S = 0.02
_KEY = "a-key-of-the-environment"
_VARIABLES = {"ROUNDHOUSE_API_KEY": _KEY}
_MISSING = '[[models.onnx_models]]\nname = "missing"\npath = "./nowhere"\n'
_LLAMA = f'[[models.torch_models]]\nname = "tiny-llama"\npath = "{MODELS / "tiny-llama"}"\n'


@dataclass(frozen=True, slots=True)
class Watched:
    """`busy`: a server with several models, one of them overloaded. `failed`: a server whose only model cannot be
    loaded. `gone`: an address without a server.
    """

    prometheus: RunningPrometheus
    busy: RunningServer
    failed: RunningServer
    gone: str


@contextmanager
def watched_servers(folder: Path) -> Iterator[Watched]:
    """Run the servers while the block lasts."""
    program("prometheus")
    folders = [folder / name for name in ("busy", "failed", "prometheus")]
    for each in folders:
        each.mkdir()
    slow, gate = slow_model(folders[0])
    slow += f"max_queue_size = {QUEUE_BOUND}\n"
    with ExitStack() as stack:
        digits = DIGITS + 'cache = true\nisolation = "process"\n'
        busy = stack.enter_context(serving(folders[0], digits + _LLAMA + slow, _VARIABLES, gated=True))
        failed = stack.enter_context(serving(folders[1], _MISSING, _VARIABLES))
        busy.client.headers["x-api-key"] = _KEY
        busy.wait_ready()
        failed.wait_for_log("model failed to load", model="missing")
        # The counters of a tenant's tokens exist from its first text on.
        busy.infer("tiny-llama", prompt="A list is", max_tokens=8)
        with socket.create_server(("127.0.0.1", 0)) as free:
            gone = f"127.0.0.1:{free.getsockname()[1]}"
        targets = [f"127.0.0.1:{server.port}" for server in (busy, failed)]
        prometheus = stack.enter_context(running_prometheus(folders[2], [*targets, gone], _KEY))
        # Prometheus sees a change of a counter only after its first scrape.
        wait_until(lambda: len(prometheus.query("roundhouse_inflight")) == len(targets))
        stack.enter_context(overload(busy, gate))
        for number in (1, 2, 2):
            busy.infer("digits", input_data=[number] * 64)
        busy.infer("tiny-llama", prompt="A list is", max_tokens=8)
        wait_until(lambda: bool(prometheus.query("rate(roundhouse_tokens_generated_total[1m]) > 0")))
        yield Watched(prometheus, busy, failed, gone)


@contextmanager
def overload(server: RunningServer, gate: RunGate) -> Iterator[None]:
    """Send requests to `slow` from more callers than its queue holds; a refused caller repeats its request.

    Each run waits at the gate, because a run that computes takes a core from all other tests.
    """
    over = Event()

    def ask() -> None:
        headers = {"x-api-key": _KEY}
        with httpx.Client(
            base_url=server.url, headers=headers, timeout=WAIT_S, trust_env=False, verify=False
        ) as client:
            while not over.is_set():
                answer = client.post("/models/slow/infer", json={"input_data": [1, 2, 3, 4]})
                assert answer.status_code in (200, 503), answer.text
                if answer.status_code == 503:
                    over.wait(0.2)

    def allow() -> None:
        while not over.wait(RUN_S):
            gate.allow_one()

    with ThreadPoolExecutor(CALLERS + 1) as pool, gate.closed():
        asked = [pool.submit(ask) for _ in range(CALLERS)]
        asked.append(pool.submit(allow))
        try:
            yield
        finally:
            over.set()
            asked.pop().result()
            gate.open()
            for each in asked:
                each.result()
