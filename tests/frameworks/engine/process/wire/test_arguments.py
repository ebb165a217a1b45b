"""The command line of an engine process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.engine.process.wire.arguments import StartArguments

NUMBERS = st.integers(0, 2**31)


@given(
    st.builds(
        StartArguments,
        model=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True),
        parent_pid=NUMBERS,
        fds=st.lists(NUMBERS, min_size=1).map(tuple),
        niceness=st.integers(-20, 19),
        cpus=st.none() | st.frozensets(NUMBERS, min_size=1),
        max_process_memory_bytes=st.none() | NUMBERS,
        log_level=st.sampled_from(["debug", "info"]),
    )
)
def test_words_are_read_as_written(arguments: StartArguments) -> None:
    assert StartArguments.from_words(arguments.to_words()) == arguments


def test_words_are_readable() -> None:
    arguments = StartArguments("minilm", 12, (5, 6), 5, frozenset([4, 5]), 1024)
    assert " ".join(arguments.to_words()) == (
        "roundhouse-engine minilm --fds 5,6 --parent 12 --nice 5 --log-level info --cpus 4,5 --max-memory 1024"
    )


def test_missing_argument_raises() -> None:
    with pytest.raises(KeyError):
        StartArguments.from_words(["roundhouse-engine", "minilm", "--fds", "5"])
