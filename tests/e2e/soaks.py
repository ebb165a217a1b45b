"""Kill processes of a server at random moments under load, and measure the server at rest."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import Load, Question, children, content, loaded, state, wait_at_rest
from tests.e2e.server import RunningServer, wait_until
from tests.support.models import onnx_graphs
from tests.support.models.causal_folders import save_causal_model
from tests.support.models.torch_folders import save_embedder

MODELS = ("small", "large", "strings", "lm", "texts")

SIGNALS = (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS)
PERMITTED = {"right", "model_failed", "unloaded", "loading", "draining"}
"""Outcomes of a request while engines are killed and models are unloaded and loaded."""

CALLERS = 2
"""Of each kind of request."""
VARIANTS = 8
"""Requests of each kind that differ: one that was in execution in two crashes is refused for a minute."""
PAUSE_S = 0.1
"""Of each caller between two requests: loads of models need the cores too."""
MAX_INTERVAL_S = 1.5
"""Between a right answer after a kill and the next kill."""
MAX_CRASHES = 2
"""Crashes in a row of a model, after which an order loads it: later restarts would take most of the time."""

SHORT = (8.0, 3)
LONG = (600.0, 200)
"""Seconds and kills of the default run and of the nightly run."""
LONG_TIMEOUT_S = 3600
"""Of the nightly run: a slow machine needs longer for so many kills."""

Victims = Callable[[Counter[str]], Sequence[tuple[str, psutil.Process]]]
"""Return the processes of which one may be killed now, each with its model or its kind, after the kills until now."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds`, `kills`: at least so long, and so many. `kinds`: a process of each is killed."""

    seconds: float
    kills: int
    kinds: frozenset[str]
    seed: int


def entries(folder: Path) -> str:
    """Save all MODELS; return their entries of config.toml."""
    graphs = {"small": onnx_graphs.identity(), "large": onnx_graphs.identity(), "strings": onnx_graphs.concat()}
    text = onnx_entries(folder, graphs)
    save_causal_model(folder / "lm", max_position_embeddings=256)
    save_embedder(folder / "texts")
    for name in ("lm", "texts"):
        text += f'[[models.torch_models]]\nname = "{name}"\npath = "{folder / name}"\n'
    return text


def bodies(variant: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return a request of each kind with its model."""
    text = {"prompt": f"on and on {variant}", "temperature": 0, "ignore_eos": True, "max_tokens": 12}
    strings = {"a": [f"ž {variant}"], "b": ["x" * 20_000], "c": [[1, 2]]}
    return [
        ("small", {"input_data": [1.0, 2.0, float(variant)]}),
        ("large", {"input_data": [float(variant + i) for i in range(20_000)]}),
        ("strings", {"inputs": strings}),
        ("lm", text),
        ("lm", text | {"stream": True}),
        ("texts", {"text": [f"engines wait {variant}", "in a shed"]}),
    ]


def questions(server: RunningServer) -> dict[tuple[Question, ...], int]:
    """Return requests of each kind with the answers of a server that nothing disturbs, and their callers."""
    kinds = zip(*(bodies(variant) for variant in range(VARIANTS)), strict=True)
    return {tuple(reference(server, model, body) for model, body in kind): CALLERS for kind in kinds}


def reference(server: RunningServer, model: str, body: Mapping[str, Any]) -> Question:
    answer = server.client.post(f"/models/{model}/infer", json=dict(body))
    assert answer.status_code == 200, answer.text
    expected = content(answer)
    return Question(model, body, lambda ours: is_close(ours, expected))


def is_close(ours: Any, theirs: Any) -> bool:
    """Compare answers; floats may differ by what the rows of other requests in a batch change."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_close(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_close, ours, theirs))
    return abs(ours - theirs) < 1e-5 if isinstance(theirs, float) else bool(ours == theirs)


def soak(server: RunningServer, plan: Plan, victims: Victims, permitted: set[str]) -> Counter[str]:
    """Kill processes as planned while requests are sent; check the outcomes. Return the kills by model or kind."""
    with loaded(server, questions(server), PAUSE_S) as load, reported(load, plan):
        killed = kill_at_random(server, load, plan, victims)
        for model in MODELS:
            if settled(partial(state, server, model)) != "ready":
                reload(server, model)
        load.wait_for_more(*MODELS, count=5)
        print(killed)
    assert {outcome for _, outcome in load.outcomes} <= permitted, (load.outcomes, load.problems[-3:])
    return killed


@contextmanager
def reported(load: Load, plan: Plan) -> Iterator[None]:
    """Print the outcomes at the end of the block, also where it fails."""
    try:
        yield
    finally:
        print(plan, dict(load.outcomes), *load.problems[-10:], sep="\n")


def kill_at_random(server: RunningServer, load: Load, plan: Plan, victims: Victims) -> Counter[str]:
    """Kill one of the victims at a random moment, again and again. Each kill follows a right answer since the last one.

    A model that has crashed often is loaded before the next kill.
    """
    chance, killed, crashed = random.Random(plan.seed), Counter[str](), Counter[str]()
    until_s = time.monotonic() + plan.seconds
    while time.monotonic() < until_s or killed.total() < plan.kills or not plan.kinds <= killed.keys():
        wait_for_right_answer(load)
        load.stop.wait(chance.uniform(0.0, MAX_INTERVAL_S))
        found = victims(killed)
        if not found:
            continue
        name, process = chance.choice(found)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(chance.choice(SIGNALS))
            killed[name] += 1
            crashed[name] += 1
        if name in MODELS and crashed[name] >= MAX_CRASHES:
            crashed[name] = 0
            reload(server, name)
    return killed


def wait_for_right_answer(load: Load) -> None:
    """Wait until any model has answered one more request rightly."""

    def count() -> int:
        return sum(load.right(model) for model in MODELS)

    before = count()
    load.wait_until(lambda: count() > before)


def reload(server: RunningServer, model: str) -> None:
    """Unload a model, in whatever state it is, and load it again. The connections of the orders may be lost."""

    def status_of(order: str) -> int:
        return settled(lambda: server.client.post(f"/models/{model}/{order}").status_code)

    assert status_of("unload") == 200
    # Its new process may have been killed by a signal that was meant for the last one.
    wait_until(lambda: status_of("load") == 200)


def settled(ask: Callable[[], Result]) -> Result:
    """Return the result of a request; repeat the request while its connection is lost."""
    results: list[Result] = []

    def is_answered() -> bool:
        with suppress(httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            results.append(ask())
        return bool(results)

    wait_until(is_answered)
    return results[0]


def descriptors_at_rest(server: RunningServer, others: int = 0) -> Counter[str]:
    """Wait until the server is at rest; return the open descriptors of each of its processes, by name.

    Those of connections of clients are not counted. `others`: number of processes that are not engines.
    """
    wait_at_rest(server, len(MODELS), others)
    processes = [psutil.Process(server.process.pid), *children(server)]
    return Counter({each.name(): each.num_fds() - connections(each) for each in processes})


def connections(process: psutil.Process) -> int:
    return len([each for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED])
