"""Freed memory is kept and given back on request: measured in processes of their own.

Kept: page faults of repeated allocations. Given back: the resident set size.
"""

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
from memory.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def churn():
    for _ in range(20):
        chunks = [bytearray(b"x") * 250_000 for _ in range(12)]
        body = b"".join(chunks)
        del chunks
        copies = [bytearray(body) for _ in range(4)]
        del body, copies
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


_ALLOCATE_AND_FREE = """
import sys, threading
from memory.allocator import give_back_freed_memory, in_use_bytes, keep_freed_memory
from memory.host import resident_bytes
if sys.argv[1] == "keep":
    keep_freed_memory()
def say():
    print(in_use_bytes(), resident_bytes())
def allocate_and_free():  # pieces smaller than the mmap threshold, and a larger one
    inner = [bytearray(b"x") * 250_000 for _ in range(100)]
    kept.append(bytearray(1000))  # stays allocated between the others
    end = [bytearray(b"x") * 250_000 for _ in range(100)]
    large = bytearray(b"x") * 50_000_000
    say()
kept = []
say()
thread = threading.Thread(target=allocate_and_free)
thread.start()
thread.join()
allocate_and_free()
say()
assert give_back_freed_memory()
say()
"""

only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told and asked")


def output_of(program: str, *arguments: str) -> list[list[int]]:
    """Run a program and return the numbers of each printed line."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@only_glibc
def test_freed_memory_is_reused_without_page_faults() -> None:
    [[kept]], [[left]] = output_of(_PROGRAM, "keep"), output_of(_PROGRAM, "leave")
    assert kept < 100 < left


@only_glibc
@pytest.mark.parametrize("mode", ["keep", "leave"])
def test_in_use_bytes_counts_every_arena(mode: str) -> None:
    before, in_thread, in_main, freed, given_back = output_of(_ALLOCATE_AND_FREE, mode)
    for in_use, _ in (in_thread, in_main):
        assert in_use - before[0] == pytest.approx(100e6, rel=0.01)
    for in_use, _ in (freed, given_back):
        assert in_use - before[0] < 1e6


@only_glibc
def test_give_back_returns_memory_of_every_thread() -> None:
    before, _, _, freed, given_back = output_of(_ALLOCATE_AND_FREE, "keep")
    assert freed[1] - before[1] > 40e6
    assert given_back[1] - before[1] < 5e6
