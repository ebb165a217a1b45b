"""Create the environments of the peers below `.bench/`, from pinned packages, when first needed."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from tools.bench.shared.servers import ROOT

_FOLDER = ROOT / ".bench"
_REQUIREMENTS = Path(__file__).parent
# Environments that also see the project's packages, such as torch.
_SEES_PROJECT = frozenset({"ctranslate2", "litserve", "openvino", "torchvision", "transformers_serve"})


def python_of(peer: str) -> Path:
    """Return the interpreter of `.bench/PEER` with the packages of `PEER.txt`.

    Raises RuntimeError if they do not install.
    """
    wanted = (_REQUIREMENTS / f"{peer}.txt").read_text(encoding="utf-8") + sys.version + str(ROOT)
    folder = _FOLDER / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {peer} into {folder.relative_to(ROOT)}", file=sys.stderr)
        _install(peer, folder, python)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _install(peer: str, folder: Path, python: Path) -> None:
    steps: list[Callable[[], object]] = [lambda: venv.create(folder, clear=True, with_pip=True)]
    if peer in _SEES_PROJECT:
        steps.append(lambda: _see_project(python))
    # Without dependencies: the file names all of them, so that no other torch is installed.
    arguments = ["install", "--quiet", "--no-deps", "--requirement", str(_REQUIREMENTS / f"{peer}.txt")]
    steps.append(lambda: _run([str(python), "-m", "pip", *arguments]))
    try:
        for step in steps:
            step()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise RuntimeError(f"{peer} cannot be installed: {reason[-1] if reason else error!r}") from error


def _see_project(python: Path) -> None:
    own = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip()
    Path(own, "project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
