"""The end of a process that writes code leaves no part of a file."""

import os
import threading
from pathlib import Path

import pytest

from frameworks.core.machine_code import code_files


def test_end_waits_for_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, list[str]]] = []
    replaced, replace = threading.Event(), os.replace

    def held(source: str, target: Path) -> None:
        assert not ended
        replaced.wait(60)
        replace(source, target)

    monkeypatch.setattr(os, "replace", held)
    monkeypatch.setattr(os, "_exit", lambda status: ended.append((status, os.listdir(tmp_path))))
    monkeypatch.setattr(code_files, "_MAX_WRITE_S", 60.0)
    # The end of a process keeps the lock, and this process goes on.
    monkeypatch.setattr(code_files, "_writing", threading.Lock())
    writer = threading.Thread(target=code_files.write_code, args=(tmp_path / "a.code", "key", b"code"))
    writer.start()
    while not os.listdir(tmp_path):
        pass
    ender = threading.Thread(target=code_files.end_process, args=(1,))
    ender.start()
    replaced.set()
    writer.join()
    ender.join()
    assert ended == [(1, ["a.code"])]
