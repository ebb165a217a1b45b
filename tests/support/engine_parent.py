"""`python -m tests.support.engine_parent`: launch an engine process, print its process ID, and wait without an end."""

import asyncio

from frameworks.engine.process.launch import LaunchOptions, launch


async def main() -> None:
    """Print the process ID when the engine process is prepared."""
    options = LaunchOptions("orphan", module="tests.support.engine_child", environment={"ENGINE_CHILD": "ignore_end"})
    process = launch(options)
    assert process.connection.recv(1) == b"r"
    print(process.pid, flush=True)
    await process.wait_ended()


if __name__ == "__main__":
    asyncio.run(main())
