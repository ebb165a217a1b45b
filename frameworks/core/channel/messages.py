"""Define the base class of the messages of a channel, and the errors of a channel."""

from msgspec import Struct


class ChannelError(Exception):
    """An error between two processes of the server. No caller sees it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ProtocolError(ChannelError):
    """The peer sent bytes that are no valid message; its later bytes cannot be trusted."""


class MessageTooLarge(ChannelError):
    """A message of this process is above the bound of a frame; nothing of it was sent."""


class ChannelLost(ChannelError):
    """The channel has ended, so the message was not sent."""


# No message refers to itself, so the garbage collector need not look for cycles.
class ChannelMessage(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message of either side."""
