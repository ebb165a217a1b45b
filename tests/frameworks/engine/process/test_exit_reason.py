"""The end of an engine process in words."""

import pytest

from frameworks.engine.process.exit_reason import ExitReason


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (ExitReason.of(-11, None, ""), "the engine process ended by SIGSEGV (invalid memory access)"),
        (ExitReason.of(-15, None, ""), "the engine process ended by SIGTERM"),
        (ExitReason.of(-40, None, ""), "the engine process ended by signal 40"),
        (ExitReason.of(3, None, ""), "the engine process ended with exit status 3"),
        (ExitReason.of(3, "a hang", ""), "the engine process ended with exit status 3"),
        (ExitReason.of(-9, "a hang", ""), "the engine process was ended: a hang"),
        (ExitReason.of(-11, "a hang", ""), "the engine process ended by SIGSEGV (invalid memory access)"),
        (
            ExitReason.of(-6, None, "terminate called ... what():  std::bad_alloc"),
            "the engine process ended by SIGABRT (memory was exhausted)",
        ),
    ],
)
def test_message_says_how_process_ended(reason: ExitReason, message: str) -> None:
    assert reason.message == message


def test_out_of_memory_is_read_from_output() -> None:
    assert not ExitReason.of(-9, "a hang", "MemoryError").is_out_of_memory
    assert ExitReason.of(-9, None, "MemoryError").is_out_of_memory
    assert not ExitReason.of(-11, None, "Segmentation fault").is_out_of_memory


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        (ExitReason.of(-11, None, ""), "sigsegv"),
        (ExitReason.of(-40, None, ""), "signal_40"),
        (ExitReason.of(1, None, ""), "exit_status"),
        (ExitReason.of(1, None, "MemoryError"), "out_of_memory"),
        (ExitReason.of(-9, "a hang", ""), "killed"),
        (ExitReason.of(-9, None, ""), "sigkill"),
    ],
)
def test_label_names_kind_of_end(reason: ExitReason, label: str) -> None:
    assert reason.label == label
