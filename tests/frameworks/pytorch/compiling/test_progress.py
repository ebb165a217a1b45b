"""The progress of a compilation, as the process reports each part."""

import sys
from pathlib import Path

import pytest

from frameworks.core.progress import WorkState, states
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.compiling import background
from tests.support.held_code import wait_until

CHILD = """
import sys, time
from pathlib import Path
for part in sys.argv[2:]:
    while not (Path(sys.argv[1]) / part).exists():
        time.sleep(0.005)
    print(part, flush=True)
"""


def of(model: str) -> list[WorkState]:
    return states(lambda work: work.name == model)


def test_models_count_parts_compiled_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "missing", lambda names: [each for each in names if not is_made(tmp_path, each)])
    monkeypatch.setattr(code_cache, "_own", tmp_path)
    monkeypatch.setattr(background, "command", lambda *words: [sys.executable, "-c", CHILD, str(words[0]), *words[1]])
    first = background.compile_parts(["float32", "step"], "first")
    second = background.compile_parts(["step"], "second")
    assert first is not None
    assert second is not None
    [state] = of("first")
    assert (state.kind, state.done, state.total, state.unit) == ("compile", 0, 2, "kernels")
    (tmp_path / "float32").touch()
    wait_until(lambda: of("first")[0].done == 1)
    assert [each.done for each in of("second")] == [0]
    (tmp_path / "step").touch()
    first.result()
    second.result()
    assert not of("first")
    assert not of("second")


def test_part_of_another_process_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made after the request, and before the compiler begins with it."""
    begun: list[str] = []
    monkeypatch.setattr(background, "missing_parts", lambda _: ["step"])
    monkeypatch.setattr(code_cache, "_own", tmp_path)
    monkeypatch.setattr(background, "_run_process", lambda *_: begun.append("step"))
    counted: list[str] = []
    background._compile(["float32", "step"], counted.append)
    assert (counted, begun) == (["float32"], ["step"])


def is_made(folder: Path, code: str) -> bool:
    return (folder / code.removesuffix("._region")).exists()
