"""A rank that ends, or fails to load, ends the model with a clear error and leaves no process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frameworks.core.errors import InvalidModel, ModelLost
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.tensor_parallel import followers as followers_of_rank_0
from frameworks.pytorch.generation.tensor_parallel import loading, rank_group
from frameworks.pytorch.generation.tensor_parallel.followers import Followers
from frameworks.pytorch.generation.tensor_parallel.loading import ParallelRunner
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.pytorch.generation.generating import load_generating, request, run_out, stepped
from tests.support.models.causal_folders import save_causal_model

ROOT = Path(__file__).parents[5]
LIMIT_S = 20.0
ENGINE = """
import sys
from pathlib import Path
from frameworks.core.devices import Device
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.generation.loading.served import GeneratorLoad, GeneratorPerformance
from frameworks.pytorch.generation.tensor_parallel.followers import Followers
entry = TorchModelEntry(name="m", path=Path("m"), tensor_parallel=2)
load = GeneratorLoad(Path("m"), entry, Device("cpu", 0, "", 0, 0), "f32", None, GeneratorPerformance(1, 1))
followers = Followers(load)
print(*followers.pids, followers.group_file.parent, flush=True)
sys.stdin.read()
"""


def soon(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_s, "it takes too long"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def followers_of(model: GeneratingModel) -> Followers:
    assert model._parts is not None
    assert isinstance(model._parts.runner, ParallelRunner)
    return model._parts.runner.followers


def children() -> list[int]:
    found = psutil.Process().children()
    return [each.pid for each in found if any("tensor_parallel.follower" in word for word in each.cmdline())]


@pytest.fixture
def model(made_once: FolderMaker) -> Any:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    model = load_generating(made_once(save_causal_model, **sizes), tensor_parallel=3, kernels="plain")
    yield model
    model.close()
    assert not children()


def test_killed_rank_fails_steps_by_name(model: GeneratingModel) -> None:
    pids = followers_of(model).pids
    model.add(request(1, range(40), 30))
    stepped(model)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(ModelLost, match=r'"m": tensor_parallel: rank 1 of 3 ended \(signal SIGKILL\); load the model'):
        run_out(model)
    # Its siblings end, and each later step fails at once.
    soon(lambda: not any(map(is_running, pids)))
    model.add(request(2, range(9), 3))
    with pytest.raises(ModelLost, match="SIGKILL"):
        model.step()


def test_closed_model_leaves_no_process(made_once: FolderMaker) -> None:
    model = load_generating(made_once(save_causal_model), tensor_parallel=2, kernels="plain")
    followers = followers_of(model)
    pids = followers.pids
    assert all(map(is_running, pids))
    model.close()
    assert not any(map(psutil.pid_exists, pids))
    assert not followers.group_file.parent.exists()


def test_rank_ends_with_killed_engine() -> None:
    command = [sys.executable, "-c", ENGINE]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        words = engine.stdout.readline().split()
        pid, folder = int(words[0]), Path(words[1])
        assert is_running(pid)
        engine.kill()
    soon(lambda: not is_running(pid))
    assert not folder.exists()


def test_error_of_rank_fails_load(made_once: FolderMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 finds no files; rank 0 waits for it, and raises its error."""
    begin = Followers._start

    def elsewhere(self: Followers, load: GeneratorLoad, rank: int) -> None:
        begin(self, replace(load, folder=tmp_path), rank)

    monkeypatch.setattr(Followers, "_start", elsewhere)
    with pytest.raises(InvalidModel, match=r"config\.json"):
        load_generating(made_once(save_causal_model), tensor_parallel=2, kernels="plain")
    assert not children()


def test_rank_that_ends_while_connecting_is_named(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        os.kill(children()[0], signal.SIGKILL)
        raise RuntimeError("Gloo connectFullMesh failed: Connection closed by peer")

    monkeypatch.setattr(rank_group, "_gloo", refuse)
    with pytest.raises(ModelLost, match=r"rank 1 of 2 ended \(signal SIGKILL\)"):
        load_generating(made_once(save_causal_model), tensor_parallel=2, kernels="plain")
    assert not children()


def test_failed_rank_0_leaves_no_process(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvalidModel("rank 0 fails")

    monkeypatch.setattr(loading, "load_shard_runner", fail)
    with pytest.raises(InvalidModel, match="rank 0 fails"):
        load_generating(made_once(save_causal_model), tensor_parallel=2, kernels="plain")
    assert not children()


def test_failed_step_of_rank_0_ends_model(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks wait for its part of a sum: they are no longer at the same step."""
    followers = followers_of(model)
    runner: Any = model._parts and model._parts.runner

    def fail(_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(runner._runner, "logits", fail)
    model.add(request(1, range(9), 3))
    with pytest.raises(ModelLost, match="rank 0 of 3 failed in a step: MemoryError: no memory"):
        model.step()
    soon(lambda: not any(map(is_running, followers.pids)))


def test_failed_step_of_rank_is_named(model: GeneratingModel) -> None:
    """A message that is no step fails in the rank; the step that follows waits for it."""
    followers = followers_of(model)
    followers._connections[1].send_bytes(b"\0\0\0\0\1\0\0\0")
    model.add(request(1, range(9), 3))
    with pytest.raises(ModelLost, match=r"(a rank|rank 2 of 3) failed: ValueError: not enough values"):
        model.step()
    soon(lambda: not any(map(is_running, followers.pids)))


def test_step_after_failed_rank_is_lost(model: GeneratingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has ended before the step is sent to it, and that was not noted yet."""
    followers = followers_of(model)
    followers._connections[1].send_bytes(b"\0\0\0\0\1\0\0\0")
    soon(lambda: not is_running(followers.pids[1]))
    monkeypatch.setattr(Followers, "check", lambda _: None)
    model.add(request(1, range(9), 3))
    with pytest.raises(ModelLost, match=r"(a rank|rank 2 of 3) failed: ValueError: not enough values"):
        model.step()


def test_halted_rank_fails_steps_in_time(made_once: FolderMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to the operations of rank 0 alone: the other rank has its own module."""
    monkeypatch.setattr(rank_group, "COLLECTIVE_S", 4.0)
    monkeypatch.setattr(followers_of_rank_0, "_REPORT_S", 0.1)
    model = load_generating(made_once(save_causal_model), tensor_parallel=2, kernels="plain")
    try:
        [pid] = followers_of(model).pids
        os.kill(pid, signal.SIGSTOP)
        model.add(request(1, range(9), 3))
        with pytest.raises(ModelLost, match="a rank of 2 did not answer in time"):
            model.step()
        soon(lambda: not is_running(pid))
    finally:
        model.close()
