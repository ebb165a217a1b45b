"""Fetch a model of the command line in a process of its own, which shows its progress.

The libraries of buckets start threads, and a server with several workers must not have any before it forks.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import API_KEY_VARIABLE

if TYPE_CHECKING:
    from app.config import LoadedSettings
    from frameworks.core.addresses import SourceAddress
    from frameworks.sources.contract import Framework

_END_WITHIN_S = 5.0
_ROOT = Path(__file__).resolve().parents[2]


class FetchFailed(Exception):
    """The model cannot be fetched. The message is written for the user."""


def fetch_framework(
    loaded: "LoadedSettings", address: "SourceAddress", framework: "Framework | None" = None
) -> "Framework":
    """Fetch a model into the cache, and return its framework. Call it in the main thread.

    `framework`: None takes that of its files. Raises FetchFailed, and KeyboardInterrupt at Ctrl-C; the same command
    then resumes the download.
    """
    models = loaded.settings.models
    cache_dir = loaded.resolve(models.cache_dir)
    words = [str(cache_dir), str(models.max_download_bytes), framework or "", str(address)]
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -P: a file of the working directory must not hide a module.
        [sys.executable, "-P", "-m", "app.cli.fetch_process", *words],
        stdin=subprocess.PIPE,  # at its end the process ends too
        stdout=subprocess.PIPE,
        env=_environment(),
        start_new_session=os.name == "posix",  # Ctrl-C is for this process, which then ends the other one
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert process.stdout is not None
        printed = process.stdout.read()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        _end(process)
    try:
        answer = json.loads(printed)
    except ValueError:
        raise FetchFailed(f"{address}: the process of the download ended with status {process.returncode}") from None
    if "error" in answer:
        raise FetchFailed(answer["error"])
    return "onnx" if answer["framework"] == "onnx" else "pytorch"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process. The parts of its download stay."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    if Path(sysconfig.get_path("purelib")) != _ROOT:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    return environment
