"""A small disk that is really full: a clear refusal, nothing that was acknowledged is lost, and searches go on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.extensions.search.collections.model import Opened, settings_of

pytestmark = pytest.mark.extended

DISK = "4m"
SCRIPT = """
import os, shutil, signal, sys
from pathlib import Path
import structlog
from extensions.search.collections.contract import StorageFull
from tests.extensions.search.collections.model import Opened, random_vectors, records_of, settings_of

# An index that does not fit is logged at any moment, and standard output is for the test.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
disk, kept = Path(sys.argv[1]), Path(sys.argv[2])
settings = settings_of(disk, 64, index_rows=500)
opened = Opened(settings)
written = 0
try:
    for number in range(1000):
        opened.run(opened.collection.upsert(records_of(random_vectors(100, 64, number), f"{number}-")))
        written += 1
except StorageFull as error:
    print("full", written, str(error))
rows = opened.run(opened.collection.info()).rows
hits = opened.run(opened.collection.search(random_vectors(1, 64, 3), 5, exact=True))
print("rows", rows, hits[0][0].id)
assert opened.run(opened.collection.get(["0-1"]))[0] is not None
# A second refusal is like the first one.
try:
    opened.run(opened.collection.upsert(records_of(random_vectors(2000, 64, 5), "again-")))
except StorageFull as error:
    print("again", error)
# As a crash on the full disk leaves the files. A new index that is being written may vanish, as the disk is full.
shutil.copytree(settings.folder, kept / "notes", ignore=shutil.ignore_patterns("*.new"))
print("end", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _in_own_mounts(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with a small disk at `folder`, which only it sees."""
    shell = f'mount -t tmpfs -o size={DISK} none "$0" && exec "$@"'
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, str(folder), *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        tried = _in_own_mounts(folder, ["true"])
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if tried.returncode:
        pytest.skip(f"no disk can be mounted here: {tried.stderr.strip()}")
    return folder


def test_full_disk_refuses_and_keeps_acknowledged(disk: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    ended = _in_own_mounts(disk, [sys.executable, "-c", SCRIPT, str(disk), str(kept)])
    lines = ended.stdout.splitlines()
    assert lines[-1:] == ["end"], ended.stderr
    word, written, reason = lines[0].split(" ", 2)
    assert word == "full"
    assert int(written) > 2
    assert reason.startswith('collection "notes": expected room on the disk, got a full one; nothing was written')
    assert lines[1] == f"rows {100 * int(written)} 3-0"
    assert lines[2].startswith('again collection "notes": expected room on the disk')
    opened = Opened(settings_of(kept, 64, index_rows=500))
    assert opened.run(opened.collection.info()).rows == 100 * int(written)
    opened.close()
