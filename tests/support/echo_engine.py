"""An engine process that answers each request with its tensors. The first argument is the number of its socket."""

import asyncio
import socket
import sys

from frameworks.core.channel.channel import Channel
from frameworks.engine.process.wire.messages import Answer, Infer, ToEngine
from frameworks.engine.process.wire.serialization import answer_to_plain, request_from_plain
from frameworks.types import TensorBatch


async def main(sock: socket.socket) -> None:
    """Answer until the server closes the socket."""
    lost = asyncio.get_running_loop().create_future()

    def answer(messages: list[ToEngine]) -> None:
        for message in messages:
            assert isinstance(message, Infer)
            request = request_from_plain(message.request)
            assert isinstance(request, TensorBatch)
            channel.send(Answer(message.id, answer_to_plain(request.inputs), 0.0, 0.0))

    channel: Channel[ToEngine] = Channel(ToEngine, answer, lost.set_result)
    await channel.open(sock)
    await lost


if __name__ == "__main__":
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
