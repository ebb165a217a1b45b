"""Send load to a running server and report what a client measures: `roundhouse bench`.

`options.py` reads the command line, `command.py` runs it. `target.py` finds what the model takes, `run.py` sends the
requests, `results/tally.py` counts, and `screen.py`, `report.py` and `results/page.py` show the result. Manual:
docs/bench.md.
"""

from typing import Any

from app.extension import Extension


def _add_commands(commands: Any) -> None:
    from extensions.load_test.options import add_bench

    add_bench(commands)


EXTENSION = Extension(add_commands=_add_commands)
