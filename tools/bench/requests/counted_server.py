"""Run the server in this process and count its function calls.

`python -m tools.bench.requests.counted_server --config FILE` takes the options of `roundhouse serve`.

A line on stdin begins a count; the next line ends it and prints one JSON object: `python_calls`, `own_calls` (of
functions of this project), `c_calls`, and `files` (own file → calls). Counts do not depend on the machine.
"""

import collections
import json
import sys
import threading
from types import FrameType
from typing import Any

from tools.bench.shared.servers import ROOT

_OWN = tuple(f"{ROOT}/{package}/" for package in ("app", "frameworks", "memory"))


class _CallCounter:
    """A profile function for `sys.setprofile`, and the counts of all threads."""

    def __init__(self) -> None:
        self._is_counting = False
        self._files: collections.Counter[str] = collections.Counter()
        self._c_calls = 0

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_counting:
            return
        if event == "call":
            self._files[frame.f_code.co_filename] += 1
        elif event == "c_call":
            self._c_calls += 1

    def answer_stdin(self) -> None:
        """Begin and end counts until stdin ends. Runs on a thread of its own, which is not counted."""
        sys.setprofile(None)
        for _ in sys.stdin:
            self._files.clear()
            self._c_calls = 0
            self._is_counting = True
            print("counting", flush=True)
            if not sys.stdin.readline():
                return
            self._is_counting = False
            own = {name: calls for name, calls in self._files.items() if name.startswith(_OWN)}
            counts = {
                "python_calls": sum(self._files.values()),
                "own_calls": sum(own.values()),
                "c_calls": self._c_calls,
                "files": own,
            }
            print(json.dumps(counts), flush=True)


def main() -> int:
    """Serve until a signal; the arguments are those of `roundhouse serve`."""
    counter = _CallCounter()
    threading.Thread(target=counter.answer_stdin, daemon=True).start()
    # Also for the threads of models, which start later.
    threading.setprofile(counter.profile)
    sys.setprofile(counter.profile)
    sys.argv = ["roundhouse", "serve", *sys.argv[1:]]
    from app.cli import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
