"""Progress of the install steps of the Makefile."""

import os
import pty
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = """
printf 'Collecting a==1\\nCollecting b==2\\nDownloading b-2.whl (900 MB)\\n'
until [ -e "$RELEASE" ]; do sleep 0.02; done
echo 'Successfully installed a-1 b-2 c-3'
"""


def start(folder: Path, script: str, name: str = "install", **streams: int) -> subprocess.Popen[bytes]:
    words = [ROOT / ".ci/step", name, folder / "step.log", "installing packages", "sh", "-c", script]
    environ = os.environ | {
        "STEPS": "python install models",
        "STEP_INTERVAL_S": "0.05",
        "RELEASE": str(folder / "release"),
    }
    return subprocess.Popen(words, env=environ, **streams)  # type: ignore[call-overload,no-any-return]


def test_step_without_terminal_prints_plain_lines(tmp_path: Path) -> None:
    with start(tmp_path, PIP, stdout=subprocess.PIPE) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == b"[2/3] installing packages ...\n"
        while b"900 MB" not in (line := step.stdout.readline()):
            assert line.startswith(b"[2/3] ")
        (tmp_path / "release").touch()
        rest = step.stdout.read()
    assert re.fullmatch(rb"\[2/3\] \d+ s: 2 packages, Downloading b-2\.whl \(900 MB\)\n", line)
    assert re.fullmatch(rb"\[2/3\] done in \d+ s: 3 packages installed\n", rest.splitlines(keepends=True)[-1])
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", line + rest)
    assert step.returncode == 0


def test_step_on_terminal_rewrites_one_line(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    step = start(tmp_path, PIP, stdout=theirs)
    os.close(theirs)
    seen = b""
    while b"900 MB" not in seen:
        seen += os.read(ours, 4096)
    (tmp_path / "release").touch()
    while b"3 packages installed" not in seen:
        seen += os.read(ours, 4096)
    assert step.wait(60) == 0
    os.close(ours)
    assert seen.count(b"\n") == 2
    assert b"\r\x1b[K[2/3] " in seen


def test_failed_step_prints_end_of_log(tmp_path: Path) -> None:
    script = "seq 100; echo 'no such package' >&2; exit 3"
    with start(tmp_path, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as step:
        printed, complaint = step.communicate(timeout=300)
    assert step.returncode == 3
    assert printed == b"[2/3] installing packages ...\n"
    lines = complaint.decode().splitlines()
    assert lines[0] == "62"
    assert lines[39] == "no such package"
    assert re.fullmatch(r"\[2/3\] failed after \d+ s; the whole output is in \S+/step\.log", lines[40])


def test_step_summary_is_last_line_without_packages(tmp_path: Path) -> None:
    with start(tmp_path, "echo 'prometheus is installed'", "models", stdout=subprocess.PIPE) as step:
        printed, _ = step.communicate(timeout=300)
    assert re.fullmatch(rb"\[3/3\] .*\n\[3/3\] done in \d+ s: prometheus is installed\n", printed)


def test_makefile_numbers_steps_of_goal() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for goal, steps in (("serve", "python install models"), ("test", "python install dev docs prometheus models")):
        words = ["make", "--dry-run", "--always-make", "EXTRA=cpu", goal]
        printed = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout
        found = re.findall(r"STEPS='([a-z ]*)' \.ci/step (\w+)", printed)
        assert found == [(steps, step) for step in steps.split()]
