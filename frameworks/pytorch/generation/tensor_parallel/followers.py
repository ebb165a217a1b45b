"""Rank 0's side of the other ranks: start their processes, send them each step, notice their end, end them."""

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import structlog

from frameworks.core.errors import ModelLost, RoundhouseError
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.tensor_parallel.checks import device_of_rank
from frameworks.pytorch.generation.tensor_parallel.messages import MET, Setup, read_error
from frameworks.pytorch.generation.tensor_parallel.rank_group import RankGroup
from frameworks.pytorch.generation.tensor_parallel.shard import Shard

log = structlog.get_logger(__name__)

_MODULE = "frameworks.pytorch.generation.tensor_parallel.follower"
_ROOT = Path(__file__).resolve().parents[4]
_LOAD_S = 1800.0
"""Limit of each part of a load: until all ranks have started, read their weights, or made their layers."""
_LOOK_S = 0.2
_REPORT_S = 5.0
"""In which a rank that has failed says why."""


class Followers:
    """The ranks 1 to N - 1 of one model. One thread loads and computes; `close` may be called by any."""

    def __init__(self, load: GeneratorLoad) -> None:
        """Start the processes. `load`: of rank 0. Raises OSError where no process or descriptor is left."""
        self.size = load.entry.tensor_parallel
        self.group: RankGroup | None = None
        """Of rank 0."""
        self._name = load.entry.name
        self._folder = Path(tempfile.mkdtemp(prefix="roundhouse-ranks-"))
        self.group_file = self._folder / "ranks"
        self._is_closed = False
        self._lost: ModelLost | None = None
        self._error: RoundhouseError | None = None
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        try:
            for rank in range(1, self.size):
                self._start(replace(load, device=device_of_rank(load.device, rank)), rank)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes by rank, from 1 on."""
        return [each.pid for each in self._processes]

    def meet(self) -> None:
        """Wait until all ranks have reached the same point of the load, and let them continue.

        Raises the error of a rank that has failed; ModelLost where one has ended or takes longer than the limit.
        """
        ends_s = time.monotonic() + _LOAD_S
        for rank, connection in enumerate(self._connections, 1):
            while not connection.poll(_LOOK_S):
                if self._lost is not None or self._processes[rank - 1].poll() is not None:
                    raise self.reason()
                if time.monotonic() > ends_s:
                    raise self._lose(f"rank {rank} of {self.size} did not load within {_LOAD_S:.0f} s")
            with self._reading:
                message = _receive(connection)
            if message is None:
                raise self.reason()
            if message != MET:
                raise read_error(message)
        self.check()
        try:
            self._send(b"go")
        except OSError as error:
            raise self.reason() from error

    def send(self, message: bytes) -> None:
        """Send a step to all ranks. Raises ModelLost where one has ended, with its reason."""
        self.check()
        try:
            self._send(message)
        except OSError as error:
            self.reason()  # which is noted
            raise self._lose("a rank has ended") from error

    def _send(self, message: bytes) -> None:
        for connection in self._connections:
            connection.send_bytes(message)

    def check(self) -> None:
        """Raise ModelLost after the end of a rank."""
        if self._lost is not None:
            raise self._lost

    def reason(self) -> RoundhouseError:
        """Return why the ranks cannot continue, after a rank or an operation has failed: the error of a rank, or its
        end. Ends all ranks.
        """
        ends_s = time.monotonic() + _REPORT_S
        while True:
            error = self._reported()
            if error is not None:
                self._lose(f"a rank failed: {error.message}")
                return error
            if self._lost is not None or time.monotonic() > ends_s:
                return self._lost or self._lose(f"a rank of {self.size} did not answer in time")
            # The thread that waits for a process notes how it ended.
            time.sleep(_LOOK_S / 10)

    def lost_in_step(self, error: Exception) -> ModelLost:
        """Return the error of all later steps, after one has failed here: the ranks are no longer at the same step.

        Ends all ranks. `error`: of rank 0; where an operation between the ranks failed, another rank has the cause.
        """
        if self.group is not None and self.group.is_broken:
            self.reason()
        return self._lose(f"rank 0 of {self.size} failed in a step: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End all ranks, and wait for their ends."""
        self._is_closed = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        for connection in self._connections:
            connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, load: GeneratorLoad, rank: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), *_paths()]))}
        with ours, theirs:
            # Its own session: Ctrl-C in a terminal ends the server, which ends this process last.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(self._folder)],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))
        watch = threading.Thread(target=self._watch, args=(process, rank), name=f"rank-{rank}", daemon=True)
        watch.start()
        self._connections[-1].send_bytes(pickle.dumps(Setup(load, Shard(rank, self.size), self.group_file)))

    def _watch(self, process: "subprocess.Popen[bytes]", rank: int) -> None:
        """Wait for the end of a process, and then end the others."""
        status = process.wait()
        error = self._reported()
        if error is not None:
            self._lose(f"rank {rank} of {self.size} failed: {error.message}")
        elif not self._is_closed:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            self._lose(f"rank {rank} of {self.size} ended ({how})")

    def _lose(self, why: str) -> ModelLost:
        """Note why the model cannot continue, the first time, and end all ranks."""
        with self._lock:
            if self._lost is None:
                self._lost = ModelLost(f'model "{self._name}": tensor_parallel: {why}; load the model again')
                if not self._is_closed:
                    log.error("the ranks of a model have ended", model=self._name, reason=why)
        for process in self._processes:
            process.kill()
        if self.group is not None:
            self.group.abort()
        return self._lost

    def _reported(self) -> RoundhouseError | None:
        """Return the error that a rank has sent before its end."""
        with self._reading, suppress(OSError):
            for connection in self._connections:
                if self._error is None and connection.poll() and (message := _receive(connection)) not in (None, MET):
                    self._error = read_error(message or b"")
        return self._error


def _receive(connection: Connection) -> bytes | None:
    """Return a message; None at the end of the connection."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _paths() -> list[str]:
    found = os.environ.get("PYTHONPATH")
    return [found] if found else []
