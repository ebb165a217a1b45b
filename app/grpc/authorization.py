"""Authenticate and authorize each call before a message is read: its key, and the scope that its method needs.

The server calls `check` for every call, also of unknown methods. `with_scopes` checks again in front of
each handler, so that a method without an entry in the table of permissions is denied. Of a signed call the nonce and
the only message are checked before its handler gets them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from app.auth.authenticator import CREDENTIAL_HEADERS, Authenticator, check_scope, read_credentials
from app.auth.client_certificates import check_same_tenant
from app.auth.digests import LONG_BYTES, parse_digest
from app.auth.errors import Forbidden, Unauthenticated
from app.auth.permissions import EXEMPT, GRPC_ACCESS, INFER
from app.auth.principal import ANONYMOUS, Principal
from app.auth.signatures import SignedRequest, is_signed
from app.grpc.call import Call, GrpcError, Header, Stream, StreamingCall, Unary
from app.grpc.handler import as_grpc_error, begin_record
from app.observability.audit import log_outcome
from app.observability.metrics import Observer
from app.protocols.shared.errors import NotFound
from frameworks.core.errors import RoundhouseError

_DIGEST = b"content-digest"
_NAMES = frozenset(CREDENTIAL_HEADERS)


class CallAuthorization:
    """Decide on calls. Owned by the event loop."""

    def __init__(self, authenticator: Authenticator, observer: Observer) -> None:
        self._authenticator = authenticator
        self._observer = observer

    def check(self, path: str, metadata: list[Header], names: tuple[str, ...] = ()) -> Principal | Stream:
        """Implement Check of app/grpc/call.py."""
        access = GRPC_ACCESS.get(path)
        if access is EXEMPT or not self._authenticator.required:
            return ANONYMOUS
        principal = ANONYMOUS
        try:
            principal = self._identify(path, metadata, names)
            if access is None or access.scope is None:
                raise NotFound(f"method: expected a method of this server, got {path[:200]}; list them by reflection")
            check_scope(principal, access.scope)
        except RoundhouseError as error:
            # Its traceback refers to the frames that keep it: they would keep the call until garbage is collected.
            return partial(self._refuse, path, principal, error.with_traceback(None))
        return principal

    def _identify(self, path: str, metadata: list[Header], names: tuple[str, ...]) -> Principal:
        """Return the sender of a call, by key, signature or client certificate. Raises Unauthenticated, Overloaded."""
        certificate = self._authenticator.certificates.find(names) if names else None
        principal = None
        credentials = [each for each in metadata if each[0] in _NAMES]
        if not credentials:
            if is_signed(metadata):
                request = SignedRequest(b"POST", path.encode(), b"", metadata)
                principal = self._authenticator.signatures.verify(request).stored.principal
            elif certificate is not None:
                return certificate
        if principal is None:
            principal = self._authenticator.authenticate(read_credentials(credentials)).principal
        if certificate is not None:
            check_same_tenant(principal, certificate)
        return principal

    async def _refuse(
        self, path: str, principal: Principal, error: RoundhouseError, requests: AsyncIterator[bytes], call: Call
    ) -> None:
        """End a refused call. As a handler of any number of requests, of which it reads none."""
        if principal.is_signed:
            await self._use_nonce(path, call)
        raise await self._note(path, principal, error, call)

    async def _use_nonce(self, path: str, call: Call) -> None:
        """Note the nonce of a signed call, if other processes share it. Raises GrpcError, also for a replay."""
        if not self._authenticator.signatures.shares_nonces:
            return
        try:
            await self._authenticator.signatures.use_nonce(call.headers)
        except RoundhouseError as error:
            # A replay is no call of the key.
            raise await self._note(path, ANONYMOUS, error.with_traceback(None), call) from None

    async def _note(self, path: str, principal: Principal, error: RoundhouseError, call: Call) -> GrpcError:
        """Count and log a refused call; return the error that ends it."""
        record = begin_record(path, call, self._observer.tracer)
        record.principal = principal
        if isinstance(error, Unauthenticated):
            self._observer.auth_failures[error.reason] += 1
            if error.is_guess:
                await self._authenticator.slowdown.wait(_address(call.peer))
        elif isinstance(error, Forbidden):
            self._observer.auth_failures["scope"] += 1
        status = as_grpc_error(error, record)
        total_s = time.perf_counter() - record.started_s
        self._observer.log_request(record, total_s)
        access = GRPC_ACCESS.get(path)
        if access is INFER:
            self._observer.end_trace(record, total_s)
        if access is not None and access.action and principal.key_id:
            log_outcome(record, access.action)
        return status

    def with_scopes(self, unary: dict[str, Unary], streams: dict[str, Stream]) -> None:
        """Put a check of the scope in front of each handler."""
        for path, handler in unary.items():
            unary[path] = self._with_scope(path, handler, partial(self._answer_signed, path, handler))
        for path, stream in streams.items():
            streams[path] = self._with_scope(path, stream, partial(self._answer_signed_stream, path, stream))

    def _with_scope(
        self, path: str, handler: Callable[[Any, Any], Any], answer_signed: Callable[[Any, Any], Any]
    ) -> Callable[[Any, Any], Any]:
        """`answer_signed`: checks a signed call before it runs the handler."""
        access = GRPC_ACCESS.get(path)
        if access is EXEMPT:
            return handler
        scope = None if access is None else access.scope

        def handle(requests: Any, call: Any) -> Awaitable[Any]:
            if self._authenticator.required and (call.principal is ANONYMOUS or scope not in call.principal.scopes):
                raise GrpcError("PERMISSION_DENIED", f"method: expected a key with a scope of {path}, got none of it")
            result: Awaitable[Any] = (answer_signed if call.principal.is_signed else handler)(requests, call)
            return result

        return handle

    async def _answer_signed(self, path: str, handler: Unary, request: bytes, call: Call) -> bytes:
        """Answer the request of a signed call: its nonce and its message are checked first. Raises GrpcError."""
        await self._use_nonce(path, call)
        await self._check_message(path, call, request)
        return await handler(request, call)

    async def _answer_signed_stream(
        self, path: str, handler: Stream, requests: AsyncIterator[bytes], call: StreamingCall
    ) -> None:
        """Answer the only request of a signed stream. Raises GrpcError, also for a second request."""
        await self._use_nonce(path, call)
        await handler(_SignedRequests(requests, partial(self._check_message, path, call)), call)

    async def _check_message(self, path: str, call: Call, message: bytes, is_second: bool = False) -> None:
        """Raise GrpcError unless the message is the only one of its call and agrees with the digest, which is among
        the metadata of a call whose signature was verified.
        """
        try:
            if is_second:
                raise Unauthenticated(
                    "signature: expected one request in a stream of a signed key, got another; call again for each"
                )
            digest = parse_digest(next(value for name, value in call.headers if name == _DIGEST))
            if len(message) < LONG_BYTES:
                digest.check(message)
            else:
                await asyncio.to_thread(digest.check, message)
        except Unauthenticated as error:
            raise await self._note(path, call.principal, error, call) from None


class _SignedRequests:
    """Iterate the requests of a signed stream, and check each. A handler that stops waiting may ask again, which a
    generator does not allow.
    """

    def __init__(self, requests: AsyncIterator[bytes], check: Callable[[bytes, bool], Awaitable[None]]) -> None:
        """`check`: takes a request and whether it is a second one."""
        self._requests = requests
        self._check = check
        self._is_read = False

    def __aiter__(self) -> "_SignedRequests":
        return self

    async def __anext__(self) -> bytes:
        request = await anext(self._requests)
        is_second, self._is_read = self._is_read, True
        await self._check(request, is_second)
        return request


def _address(peer: str) -> str:
    """Return the address in a peer: `ipv4:127.0.0.1:40000`, `ipv6:[::1]:40000`."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].strip("[]")
