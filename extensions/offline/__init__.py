"""Run a model over files of rows: `roundhouse run`. Needs pyarrow, the extra `data`.

`options.py` reads the command line, `job.py` runs it: it reads windows of rows (`input/readers.py`), infers in this
process (`local_model.py`), at a server (`served_model.py`) or on Ray (`ray/`), writes parts (`output/parts.py`) and
merges them. Manual: docs/offline.md.
"""

from typing import Any

from app.extension import Extension


def _add_commands(commands: Any) -> None:
    from extensions.offline.options import add_run

    add_run(commands)


EXTENSION = Extension(add_commands=_add_commands)
