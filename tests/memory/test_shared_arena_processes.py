"""Two processes with two arenas: tensors in both directions, and the death of either process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from memory.shared_arena import SharedArena
from memory.shared_memory import SharedMemoryError
from tests.memory.test_shared_memory import LINUX
from tests.support.arena_peer import ROOT, Peer, written

MIB = 1024**2

_PARENT = """
import os, sys
import numpy as np
from memory.shared_arena import SharedArena
from tests.support.arena_peer import Peer, written

requests, answers = SharedArena.create(2**40), SharedArena.create(2**40)
peer = Peer(requests, answers)
assert peer.ask("hold", *written(requests, np.ones(2**20))) == 2**20
print(peer.process.pid, os.fstat(requests.fd).st_ino, os.fstat(answers.fd).st_ino, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def arenas() -> Iterator[tuple[SharedArena, SharedArena]]:
    arenas = SharedArena.create(16 * MIB), SharedArena.create(16 * MIB)
    yield arenas
    for arena in arenas:
        arena.close()


@pytest.fixture
def peer(arenas: tuple[SharedArena, SharedArena]) -> Iterator[Peer]:
    peer = Peer(*arenas)
    yield peer
    peer.kill()


def test_tensors_cross_in_both_directions(peer: Peer, arenas: tuple[SharedArena, SharedArena]) -> None:
    requests, answers = arenas
    random = np.random.default_rng(0)
    for turn, dtype in enumerate(["float32", "int64", "uint8", "float16"] * 5, 1):
        tensor = random.integers(0, 100, (3, 1000 * turn, 2)).astype(dtype)
        request = written(requests, tensor)
        number, offset, nbytes, answer_dtype, shape = peer.ask("double", *request)
        unused: list[int] = []
        answer = answers.read(number, offset, nbytes, unused.append).view(answer_dtype).reshape(shape)
        assert answer.dtype == tensor.dtype
        np.testing.assert_array_equal(answer, tensor * 2)
        assert peer.ask("unused") == list(range(1, turn + 1))
        requests.free(request[0])
        del answer
        assert peer.ask("free", *unused) == 0
    requests.check_integrity()
    answers.check_integrity()


def test_killed_reader_leaves_blocks_to_writer(peer: Peer, arenas: tuple[SharedArena, SharedArena]) -> None:
    requests, _ = arenas
    numbers = []
    for _ in range(4):
        request = written(requests, np.ones(MIB, np.float32))
        assert peer.ask("hold", *request) == MIB
        numbers.append(request[0])
    assert requests.lease(MIB) is None
    peer.kill()
    for number in numbers:
        requests.free(number)
    requests.check_integrity()
    assert requests.lease(16 * MIB) is not None


def test_new_reader_reads_same_blocks(peer: Peer, arenas: tuple[SharedArena, SharedArena]) -> None:
    requests, answers = arenas
    request = written(requests, np.arange(1000.0))
    assert peer.ask("hold", *request) == 499_500
    peer.kill()
    second = Peer(requests, answers)
    assert second.ask("hold", *request) == 499_500
    second.kill()


def test_answer_outlives_killed_writer(peer: Peer, arenas: tuple[SharedArena, SharedArena]) -> None:
    requests, answers = arenas
    number, offset, nbytes, dtype, shape = peer.ask("double", *written(requests, np.arange(1000)))
    answer = answers.read(number, offset, nbytes, lambda _: None).view(dtype).reshape(shape)
    peer.kill()
    answers.close()
    assert answer.sum() == 999_000


def test_arena_of_other_size_is_refused(arenas: tuple[SharedArena, SharedArena]) -> None:
    requests, answers = arenas
    with pytest.raises(SharedMemoryError):
        SharedArena.attach(os.dup(requests.fd), 2 * answers.max_bytes)


def users(inode: str) -> list[str]:
    """List the processes that map a file."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found += [maps.parent.name for line in maps.read_text().splitlines() if line.split()[4] == inode]
    return found


@LINUX
def test_memory_ends_with_both_processes() -> None:
    names = set(os.listdir("/dev/shm"))
    with subprocess.Popen([sys.executable, "-c", _PARENT], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, *inodes = parent.stdout.readline().split()
        assert [set(users(inode)) for inode in inodes] == [{str(parent.pid), child}] * 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(users, inodes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not {name for name in set(os.listdir("/dev/shm")) - names if name.startswith("rh-")}
