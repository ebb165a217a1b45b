"""Note nonces of signed requests, and failures of keys, once for all workers: the supervisor has the only tables."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from app.auth.errors import Unauthenticated
from app.auth.failed_key_limit import FailedKeys
from app.auth.nonces import NonceStore
from app.workers.messages import FailedKeyNoted, NonceUsed, NoteFailedKey, UseNonce
from frameworks.core.channel.messages import ChannelLost
from frameworks.core.errors import Draining, Overloaded
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.messages import Failure, Reply

_TIMEOUT_S = 5.0


class SharedNonces:
    """The supervisor's side. Owned by the event loop."""

    def __init__(self, workers: Workers, now_s: Callable[[], float] = time.time) -> None:
        """Create it before any worker accepts connections. `now_s`: Unix time in seconds."""
        self._nonces = NonceStore(int(now_s()))
        self._now_s = now_s
        workers.on_connect(self._connect)

    def _connect(self, link: ControlLink) -> None:
        link.handle(UseNonce, partial(self._use, link))

    def _use(self, link: ControlLink, request: UseNonce) -> None:
        reply: Reply = NonceUsed(request.id)
        try:
            self._nonces.add(request.key_id, request.nonce, request.created_s, self._now_s())
        except Unauthenticated as error:
            reply = NonceUsed(request.id, error.message)
        except Overloaded as error:
            reply = Failure(request.id, error_to_plain(error))
        link.send(reply)


class WorkerNonces:
    """A worker's side: `use` is the `use_nonce` of its Authenticator. Owned by the event loop."""

    def __init__(self, link: ControlLink, timeout_s: float = _TIMEOUT_S) -> None:
        """`timeout_s`: until a request is refused if the supervisor does not answer."""
        self._link = link
        self._timeout_s = timeout_s

    async def use(self, key_id: str, nonce: bytes, created_s: int) -> None:
        """Note the nonce of a signature whose MAC and age were checked.

        Raises Unauthenticated if it was used, in any worker; Overloaded if there is no place for it, or the supervisor
        does not answer in time; Draining where the supervisor is lost.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._link.ask(lambda number: UseNonce(number, key_id, nonce, created_s))
        except ChannelLost:
            # The workers end with the supervisor.
            raise Draining(Draining.REFUSED) from None
        except TimeoutError:
            raise Overloaded(
                f"signature: expected its nonce to be noted within {self._timeout_s:.0f} s, got no answer; "
                "sign the request again later",
                self._timeout_s,
            ) from None
        refusal = cast(NonceUsed, reply).refusal
        if refusal:
            raise Unauthenticated(refusal)


_FAILED_KEY_TIMEOUT_S = 1.0


class SharedFailures:
    """The supervisor's side. Owned by the event loop."""

    def __init__(self, workers: Workers, failed: FailedKeys | None = None) -> None:
        """Create it before any worker accepts connections. `failed`: None for an empty table."""
        self._failed = FailedKeys() if failed is None else failed
        workers.on_connect(self._connect)

    def _connect(self, link: ControlLink) -> None:
        link.handle(NoteFailedKey, partial(self._note, link))

    def _note(self, link: ControlLink, request: NoteFailedKey) -> None:
        link.send(FailedKeyNoted(request.id, self._failed.note(request.address)))


class WorkerFailures:
    """A worker's side: `note` is the `note_shared` of its Slowdown. Owned by the event loop."""

    def __init__(self, link: ControlLink, timeout_s: float = _FAILED_KEY_TIMEOUT_S) -> None:
        """`timeout_s`: until the worker counts alone if the supervisor does not answer."""
        self._link = link
        self._timeout_s = timeout_s

    async def note(self, address: str) -> bool | None:
        """Count a failure of an address; return whether it has had too many in all workers.

        None where the supervisor is lost, or does not answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._link.ask(lambda number: NoteFailedKey(number, address))
        except (ChannelLost, TimeoutError):
            return None
        return cast(FailedKeyNoted, reply).is_delayed
