"""Run an engine process: `python -m frameworks.engine.process.host.child`, with the arguments that `launch` writes."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from frameworks.engine.process.host import startup
from memory.garbage import pause_collections


def main(words: Sequence[str]) -> NoReturn:
    """Load and run a model until the server ends it."""
    arguments = startup.prepare(words)
    pause_collections()
    # A plugin of the server's environment has no use here, and the search for one reads the files of all packages.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    # Imports numpy, whose thread pool has the size of the CPUs of the process.
    from frameworks.engine.process.host.event_loop import serve

    status = 1
    try:
        status = serve(arguments)
    except BaseException:  # noqa: BLE001 - the process ends
        # The server keeps it as the last output.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A run may be in progress. A library that is unloaded while it computes ends the process with a signal.
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
