"""`python -m tests.support.engine_parent ACT`: launch a process of `engine_child`, print its process ID, and wait.

The process does ACT. At SIGTERM this one ends as a server does at its second signal.
"""

import asyncio
import signal
import sys
from unittest.mock import Mock

from frameworks.engine.process.client.launch import LaunchOptions, launch


async def main(act: str) -> None:
    """Print the process ID when the process is prepared, or at once if it never is."""
    environment = {"ENGINE_CHILD": act}
    process = launch(LaunchOptions("orphan", module="tests.support.engine_child", environment=environment))
    if act == "wait_unprepared":
        _handle_second_signal()
    else:
        assert process.connection.recv(1) == b"r"
    print(process.pid, flush=True)
    await process.wait_ended()


def _handle_second_signal() -> None:
    import uvicorn

    from app.server.process import _DrainingServer

    server = _DrainingServer(uvicorn.Config(Mock()), Mock(), Mock(), Mock())
    server.should_exit = True
    signal.signal(signal.SIGTERM, server.handle_exit)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
