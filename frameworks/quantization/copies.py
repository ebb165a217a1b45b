"""Quantised copies below `models.cache_dir`: each made once, by one process, and found whole or made anew."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson
import structlog
from filelock import FileLock, Timeout

from frameworks.errors import InvalidModel
from frameworks.files import contents_name, file_digest
from frameworks.types import QuantizationReport

log = structlog.get_logger(__name__)

# Goes up whenever what is made from the same files changes.
_VERSION = 1
_REPORT = "report.json"

Make = Callable[[Path], QuantizationReport]
"""Writes a copy's files into the empty folder it is given, and says how good they are."""


class QuantizedCopies:
    """The folder of copies: `<cache_dir>/quantized/<name of the contents>-<scheme>-v<version>/`. Used by any thread."""

    def __init__(self, cache_dir: Path) -> None:
        """`cache_dir` is absolute; it is made when first used."""
        self._cache_dir = cache_dir
        self._root = cache_dir / "quantized"

    def get(self, sources: Sequence[Path], scheme: str, made_by: str, make: Make) -> tuple[Path, QuantizationReport]:
        """The copy's folder and its report; `make` is called if there is no whole copy yet.

        `sources`: the files it is made from. `made_by`: what else it depends on, versions of libraries above all. While
        another thread or process makes it, this one waits. Raises InvalidModel where `cache_dir` cannot be written, and
        whatever `make` raises.
        """
        name = f"{contents_name(sources, made_by)}-{scheme}-v{_VERSION}"
        folder = self._root / name
        if report := _read(folder):
            return folder, report
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with _locked(self._root / f"{name}.lock"):
                report = _read(folder) or self._make(folder, make)
        except OSError as error:
            raise InvalidModel(
                f"models.cache_dir = {self._cache_dir}: the quantised copy cannot be written there ({error}); make "
                "room or make it writable, name another folder, or leave quantisation out of the model's entry"
            ) from error
        return folder, report

    def _make(self, folder: Path, make: Make) -> QuantizationReport:
        """In a folder beside it that then takes its name: what was begun and not ended is never taken for a copy."""
        for left_over in self._root.glob(f".{folder.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=self._root))
        try:
            report = make(making)
            files = {file.name: [file.stat().st_size, file_digest(file)] for file in sorted(making.iterdir())}
            (making / _REPORT).write_bytes(orjson.dumps({"report": asdict(report), "files": files}))
            if folder.exists():
                log.warning("a quantised copy was damaged and is replaced", folder=str(folder))
                shutil.rmtree(folder)
            making.chmod(0o755)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return report


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds the lock of one copy in the block. The system lets go of it when the process dies."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process or thread is quantising this model; waiting for it", lock=str(file))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _read(folder: Path) -> QuantizationReport | None:
    """The report of a copy; None where there is none, or one that is not as it was written."""
    try:
        content = orjson.loads((folder / _REPORT).read_bytes())
        for name, written in content["files"].items():
            # The size first: what is cut short is found without reading it.
            if (folder / name).stat().st_size != written[0] or file_digest(folder / name) != written[1]:
                return None
        return _report(content["report"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _report(content: dict[str, Any]) -> QuantizationReport:
    return QuantizationReport(**{field.name: content[field.name] for field in fields(QuantizationReport)})
