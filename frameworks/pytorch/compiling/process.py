"""The process that compiles for a server: it fills a folder with code, at low priority, and ends with the server.

Type inference and LLVM would hold the server's interpreter for most of the time.
"""

import fcntl
import os
import sys
from pathlib import Path

from frameworks.core.machine_code.processes import end_with_parent

_NICENESS = 10
_LOCK = "compiling.lock"
NOT_KEPT = 3
"""Exit status where the folder does not take the code."""


def main() -> None:
    """Compile the parts that the arguments name behind the folder. The last line that it prints is the reason of a
    failure.
    """
    folder, *parts = sys.argv[1:]
    end_with_parent()
    os.nice(_NICENESS)
    try:
        # Processes that need the same code wait here, before they take memory for torch and numba.
        with (Path(folder) / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _compile(Path(folder), parts)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_KEPT)


def _compile(folder: Path, parts: list[str]) -> None:
    from frameworks.pytorch.compiled.cache import code_cache
    from frameworks.pytorch.compiling.parts import compile_part, missing_parts

    code_cache.use_folder(folder, only_to_fill=True)
    for part in missing_parts(parts):
        compile_part(part)
        print(part, flush=True)  # for the progress of the server
    left = missing_parts(parts)
    if left:
        raise OSError(f"the code of {', '.join(left)} could not be kept in {folder}")


if __name__ == "__main__":
    main()
