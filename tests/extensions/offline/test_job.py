"""A whole run with a model of this test: order, bad rows, and the end of the process at any point."""

import asyncio
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from extensions.offline.contract import RunFailed, WrongCommand
from extensions.offline.input.files import find_files
from extensions.offline.job import RunJob, RunResult, run_job
from extensions.offline.requests import RowSource
from tests.extensions.offline.fake_model import REFUSED, FakeModel

TEXTS = [f"{'word ' * (i * 7 % 11)}{i}" for i in range(23)]
BAD = {5: None, 9: REFUSED, 20: 3}
SOURCE = RowSource("text", {}, "text", {})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": BAD.get(i, text)}) + "\n" for i, text in enumerate(TEXTS)))
    return path


def job_of(path: Path, name: str = "out.jsonl", **changes: Any) -> RunJob:
    output = path.parent / name
    job = RunJob(find_files(str(path), output), output.with_name(output.name + ".parts"), SOURCE, window_rows=4)
    return replace(job, **{"errors": path.parent / "errors.jsonl", **changes})


def run(job: RunJob, model: FakeModel | None = None) -> RunResult:
    return asyncio.run(run_job(job, model or FakeModel(), io.StringIO()))


def check_output(folder: Path) -> None:
    lines = (folder / "out.jsonl").read_text().splitlines()
    expected = [
        {"id": i, "text": text, "embedding": [len(text), len(text.split())]}
        for i, text in enumerate(TEXTS)
        if i not in BAD
    ]
    assert [json.loads(line) for line in lines] == expected
    errors = [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]
    assert [error["row"] for error in errors] == [i + 1 for i in BAD]
    assert {error["file"] for error in errors} == {str(folder / "in.jsonl")}


def test_output_is_in_input_order(rows: Path) -> None:
    assert run(job_of(rows)) == RunResult(rows=23, bad=3)
    check_output(rows.parent)
    assert sorted(path.name for path in rows.parent.iterdir()) == ["errors.jsonl", "in.jsonl", "out.jsonl"]


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """End the process at this call that changes a file system: before it, or for odd steps after it."""
    calls = 0

    def wrapped(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 2
            if calls == step:
                raise Killed
            result = change(*arguments, **options)
            if calls + 1 == step:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Path, "replace"),
            (Path, "rename"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (os, "fsync"),
            (shutil, "rmtree"),
            (shutil, "copyfile"),
        ):
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield


@pytest.mark.extended
def test_kill_at_any_point_loses_nothing(rows: Path) -> None:
    step = 1
    while True:
        step += 1
        try:
            with killed_at(step):
                run(job_of(rows))
            break
        except Killed:
            pass
        try:
            run(job_of(rows))
        except WrongCommand as error:
            # The end came when only the folder of parts was left to delete.
            assert "exists" in str(error)  # noqa: PT017
            assert not (rows.parent / "out.jsonl.parts").exists()
        check_output(rows.parent)
        for name in ("out.jsonl", "errors.jsonl"):
            (rows.parent / name).unlink()
    assert step > 60
    check_output(rows.parent)


def test_resumed_run_repeats_no_window(rows: Path) -> None:
    class Failing(FakeModel):
        async def answer(self, body: bytes) -> Any:
            if TEXTS[14] in body.decode():
                raise RunFailed("the model failed")
            return await super().answer(body)

    with pytest.raises(RunFailed, match="the model failed"):
        run(job_of(rows), Failing())
    model = FakeModel()
    assert run(job_of(rows), model).rows == 23
    sent = [
        text for body in model.bodies for text in ([body["text"]] if isinstance(body["text"], str) else body["text"])
    ]
    assert TEXTS[0] not in sent
    assert TEXTS[14] in sent
    check_output(rows.parent)


def test_first_bad_row_ends_run(rows: Path) -> None:
    with pytest.raises(RunFailed, match=r"row 6: text: expected a text, got null; --errors"):
        run(job_of(rows, errors=None))
    assert run(job_of(rows)).bad == 3
    check_output(rows.parent)


@pytest.mark.parametrize(
    ("changes", "identity", "changed"),
    [
        ({}, "2", "model"),
        ({"prefix": "x_"}, "1", "columns"),
        ({"source": replace(SOURCE, options={"truncate": False})}, "1", "options"),
        ({"window_rows": 5}, "1", "window_rows"),
    ],
)
def test_other_command_does_not_resume(rows: Path, changes: dict[str, Any], identity: str, changed: str) -> None:
    with pytest.raises(RunFailed):
        run(job_of(rows, errors=None))
    with pytest.raises(WrongCommand, match=f"other {changed}; .*--restart"):
        run(job_of(rows, **changes), FakeModel(identity))
    assert run(job_of(rows, restart=True, **changes), FakeModel(identity)).rows == 23


def test_changed_input_does_not_resume(rows: Path) -> None:
    with pytest.raises(RunFailed):
        run(job_of(rows, errors=None))
    rows.write_text(rows.read_text() + '{"id": 1, "text": "more"}\n')
    with pytest.raises(WrongCommand, match="other input"):
        run(job_of(rows))


def test_existing_output_is_kept(rows: Path) -> None:
    (rows.parent / "out.jsonl").write_text("precious")
    with pytest.raises(WrongCommand, match="which exists"):
        run(job_of(rows))
    assert (rows.parent / "out.jsonl").read_text() == "precious"
    run(job_of(rows, restart=True))
    check_output(rows.parent)


def test_full_disk_keeps_finished_windows(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match="the disk is full; free space"):
            run(job_of(rows))
    assert run(job_of(rows)) == RunResult(rows=23, bad=3)
    check_output(rows.parent)


def test_second_process_is_refused(rows: Path) -> None:
    class Nested(FakeModel):
        async def answer(self, body: bytes) -> Any:
            if TEXTS[14] in body.decode():
                await run_job(job_of(rows), FakeModel(), io.StringIO())
            return await super().answer(body)

    with pytest.raises(WrongCommand, match="another process works on this run"):
        run(job_of(rows), Nested())


def test_folder_gives_file_for_each_input(rows: Path) -> None:
    folder = rows.parent / "folder"
    folder.mkdir()
    (folder / "one.csv").write_text("text\nhello\n")
    (folder / "two.jsonl").write_text('{"text": "a b"}\n')
    output = rows.parent / "results"
    job = replace(job_of(rows), files=find_files(str(folder), output), parts=rows.parent / "results.parts")
    assert run(job) == RunResult(rows=2, bad=0)
    assert (output / "one.csv").read_text() == '"text","embedding"\n"hello","[5.0,1.0]"\n'
    assert (output / "two.jsonl").read_text() == '{"text":"a b","embedding":[3.0,2.0]}\n'


def test_refused_options_change_nothing(rows: Path) -> None:
    class Refusing(FakeModel):
        async def answer(self, body: bytes) -> Any:
            return await super().answer(json.dumps({"text": REFUSED}).encode())

    with pytest.raises(WrongCommand, match="refused"):
        run(job_of(rows), Refusing())
    assert [path.name for path in rows.parent.iterdir()] == ["in.jsonl"]
