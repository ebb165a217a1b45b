"""The other process of a pair of arenas: reads requests, writes answers, one JSON line on stdin and stdout for each.

`python -m tests.support.arena_peer REQUESTS_FD ANSWERS_FD MAX_BYTES`. It ends with its input.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memory.buffers import Array
from memory.shared_arena import Block, SharedArena

ROOT = Path(__file__).resolve().parents[2]


class Peer:
    """Handle on the other process, for the test."""

    def __init__(self, requests: SharedArena, answers: SharedArena) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.arena_peer"),
                *(str(requests.fd), str(answers.fd), str(requests.max_bytes)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(requests.fd, answers.fd),
            text=True,
        )

    def ask(self, action: str, *values: Any) -> Any:
        """Send one line and return the answer to it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([action, *values]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.kill()
        self.process.communicate(timeout=300)


def reference(block: Block, array: Array) -> list[Any]:
    """Return a block as a line names it: number, offset, bytes, dtype, shape."""
    return [block.number, block.offset, block.array.nbytes, array.dtype.str, list(array.shape)]


def written(arena: SharedArena, array: Array) -> list[Any]:
    """Copy an array into a new block, and return its reference."""
    block = arena.lease(array.nbytes)
    assert block is not None
    block.array.view(array.dtype).reshape(array.shape)[...] = array
    return reference(block, array)


class _Actions:
    def __init__(self, requests: SharedArena, answers: SharedArena) -> None:
        self._requests = requests
        self._answers = answers
        self._unused: list[int] = []
        self._held: list[Array] = []

    def double(self, *of: Any) -> list[Any]:
        """Answer with a tensor of twice the values."""
        return written(self._answers, self._read(*of) * 2)

    def hold(self, *of: Any) -> float:
        """Keep a tensor, and answer with its sum."""
        self._held.append(self._read(*of))
        return float(self._held[-1].sum())

    def free(self, number: int) -> int:
        """Free an answer, and answer with the number of those in use."""
        self._answers.free(number)
        return self._answers.stats().leases

    def unused(self) -> list[int]:
        """Answer with the requests that are not in use any more."""
        return self._unused

    def _read(self, number: int, offset: int, nbytes: int, dtype: str, shape: list[int]) -> Array:
        array = self._requests.read(number, offset, nbytes, self._unused.append)
        return array.view(np.dtype(dtype)).reshape(shape)


def main(requests_fd: str, answers_fd: str, max_bytes: str) -> None:
    """Answer each line of the input."""
    arenas = (SharedArena.attach(int(fd), int(max_bytes)) for fd in (requests_fd, answers_fd))
    actions = _Actions(*arenas)
    for line in sys.stdin:
        action, *values = json.loads(line)
        print(json.dumps(getattr(actions, action)(*values)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
