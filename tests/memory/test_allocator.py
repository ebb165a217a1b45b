"""Freed memory is kept: measured by the page faults of a process that takes and frees the same again and again."""

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


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, mode], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
def test_memory_that_was_freed_is_not_faulted_in_again() -> None:
    assert page_faults("keep") < 100 < page_faults("leave")
