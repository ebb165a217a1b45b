"""Cache copies of models, quantized ones and encoders of graphs, below `models.cache_dir`.

One process makes a copy, and damaged copies are replaced.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import orjson
import structlog

from frameworks.core.errors import InvalidModel
from frameworks.core.files import contents_name, file_digest
from frameworks.core.progress import phase, working
from frameworks.types import KernelTrial, QuantizationReport

log = structlog.get_logger(__name__)

# Increase it whenever the copies of the same files change.
_VERSION = 2
_REPORT = "report.json"

Make = Callable[[Path], QuantizationReport]
"""Write the files of a copy into an empty folder, and return its report."""


class QuantizedCopies:
    """Copies in `<cache_dir>/quantized/<name of the contents>-<scheme>-v<version>/`. Thread-safe."""

    def __init__(self, cache_dir: Path) -> None:
        """`cache_dir` is absolute; it is created at the first use."""
        self._cache_dir = cache_dir
        self._root = cache_dir / "quantized"

    @property
    def cache_dir(self) -> Path:
        """The folder of all derived files."""
        return self._cache_dir

    def get(self, sources: Sequence[Path], scheme: str, made_by: str, make: Make) -> tuple[Path, QuantizationReport]:
        """Return the folder of a copy and its report; call `make` where no complete copy exists.

        `sources`: the original files. `made_by`: other dependencies, above all versions of libraries. Waits while
        another thread or process makes the copy. Raises InvalidModel where `cache_dir` is not writable, and the errors
        of `make`.
        """
        name = f"{contents_name(sources, made_by)}-{scheme}-v{_VERSION}"
        folder = self._root / name
        if report := _read(folder):
            return folder, report
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with working("quantize"), _locked(self._root / f"{name}.lock"):
                report = _read(folder) or self._make(folder, make)
        except OSError as error:
            raise InvalidModel(
                f"models.cache_dir = {self._cache_dir}: the {scheme} copy cannot be written there ({error}); free "
                "disk space, make it writable, name another folder, or remove quantization and kernels from the entry",
                "its copy cannot be written to models.cache_dir; the log of the server has the reason",
            ) from error
        return folder, report

    def _make(self, folder: Path, make: Make) -> QuantizationReport:
        """Make the copy in a temporary folder and rename it, so that an incomplete copy is never used."""
        for left_over in self._root.glob(f".{folder.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=self._root))
        try:
            report = make(making)
            written = [each for each in sorted(making.rglob("*")) if each.is_file()]
            files = {each.relative_to(making).as_posix(): [each.stat().st_size, file_digest(each)] for each in written}
            (making / _REPORT).write_bytes(orjson.dumps({"report": asdict(report), "files": files}))
            if folder.exists():
                log.warning("damaged quantized copy replaced", folder=str(folder))
                shutil.rmtree(folder)
            making.chmod(0o755)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return report


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock of a copy within the block. The system releases it when the process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another process or thread that quantizes this model", lock=str(file))
        phase("waits for another process that quantizes it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _read(folder: Path) -> QuantizationReport | None:
    """Return the report of a copy; None where it is absent or damaged."""
    try:
        content = orjson.loads((folder / _REPORT).read_bytes())
        for name, written in content["files"].items():
            # Compare the size first: a truncated file is found without reading it.
            if (folder / name).stat().st_size != written[0] or file_digest(folder / name) != written[1]:
                return None
        return _report(content["report"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _report(content: dict[str, Any]) -> QuantizationReport:
    report = QuantizationReport(**{field.name: content[field.name] for field in fields(QuantizationReport)})
    return replace(report, kernels=tuple(KernelTrial(**each) for each in content["kernels"]))
