"""Freed memory is kept, until it is to be given back: measured in processes that do nothing else.

Kept: by the page faults of taking and freeing the same again and again. Given back: by the resident set.
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


_TAKE_AND_FREE = """
import sys, threading
from memory.allocator import give_back_freed_memory, in_use_bytes, keep_freed_memory
from memory.host import resident_bytes
if sys.argv[1] == "keep":
    keep_freed_memory()
def say():
    print(in_use_bytes(), resident_bytes())
def take_and_free():  # pieces below the size that is mapped, and one above
    inner = [bytearray(b"x") * 250_000 for _ in range(100)]
    kept.append(bytearray(1000))  # stays in use between them
    end = [bytearray(b"x") * 250_000 for _ in range(100)]
    large = bytearray(b"x") * 50_000_000
    say()
kept = []
say()
thread = threading.Thread(target=take_and_free)
thread.start()
thread.join()
take_and_free()
say()
assert give_back_freed_memory()
say()
"""

only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told and asked")


def said(program: str, *arguments: str) -> list[list[int]]:
    """What a program prints: numbers, in lines."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@only_glibc
def test_memory_that_was_freed_is_not_faulted_in_again() -> None:
    [[kept]], [[left]] = said(_PROGRAM, "keep"), said(_PROGRAM, "leave")
    assert kept < 100 < left


@only_glibc
@pytest.mark.parametrize("mode", ["keep", "leave"])
def test_what_is_in_use_is_counted_in_every_arena(mode: str) -> None:
    before, in_thread, in_main, freed, given_back = said(_TAKE_AND_FREE, mode)
    for in_use, _ in (in_thread, in_main):
        assert in_use - before[0] == pytest.approx(100e6, rel=0.01)
    for in_use, _ in (freed, given_back):
        assert in_use - before[0] < 1e6


@only_glibc
def test_what_is_free_is_given_back_whichever_thread_had_it() -> None:
    before, _, _, freed, given_back = said(_TAKE_AND_FREE, "keep")
    assert freed[1] - before[1] > 40e6
    assert given_back[1] - before[1] < 5e6
