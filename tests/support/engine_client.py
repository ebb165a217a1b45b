"""A process that is a client of an engine process. Its arguments are the descriptors of the connection.

It prints a line when its first requests are answered, and sends requests until it is killed.
"""

import asyncio
import sys

from frameworks.engine.contract import RunCounts
from frameworks.engine.process.client.client_link import ClientLink
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.process.wire.messages import Loaded
from tests.support.engine_hosts import SETTINGS, ArrayModel
from tests.support.shared_engines import ask


async def main(descriptors: list[int]) -> None:
    """Send small and large requests without an end."""

    async def find_loss() -> Loss:
        sys.exit(3)

    async def start(engine: ProcessEngine) -> Started:
        link = ClientLink(descriptors, "adder", find_loss, lambda *_: None)
        await link.open(engine)
        return Started(link, Loaded(None, 1, 0.5, 0.1), ArrayModel().spec)

    engine = ProcessEngine(SETTINGS, RunCounts(), start)
    await engine.open()
    requests = 0
    while True:
        answers = await asyncio.gather(*(ask(engine, float(each), 1 + each * 200) for each in range(16)))
        assert answers == [2.0 * each for each in range(16)]
        requests += 1
        if requests == 3:
            print("answered", flush=True)


if __name__ == "__main__":
    asyncio.run(main([int(each) for each in sys.argv[1:]]))
