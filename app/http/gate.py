"""Decide on each HTTP request before it is routed: its key, and the scope that its path needs.

A path or method that the table of permissions omits is denied, also where a router knows it.
"""

import time

from starlette.types import Scope

from app.auth.authenticator import Authenticator, check_query, check_scope, read_credentials
from app.auth.client_certificates import check_same_tenant
from app.auth.errors import Forbidden, Unauthenticated
from app.auth.permissions import EXEMPT, INFER
from app.auth.principal import UNAUTHENTICATED, Principal
from app.auth.signatures import SignedRequest, is_signed
from app.http.origins import OriginPolicy, is_preflight
from app.http.page.page import is_page
from app.http.request import HttpRequest
from app.observability.audit import log_action
from app.observability.metrics import Observer
from app.protocols.shared.errors import MethodNotAllowed, NotFound
from app.protocols.shared.routes import RouteTable
from frameworks.core.errors import RoundhouseError


class HttpGate:
    """Owned by the event loop."""

    def __init__(
        self,
        authenticator: Authenticator,
        observer: Observer,
        table: RouteTable,
        origins: OriginPolicy,
        has_page: bool = False,
    ) -> None:
        """`has_page`: whether the web page is served, which needs no key."""
        self.keys = authenticator.keys
        """`keys.required`: whether requests are checked. Read by the endpoint for each of them."""
        self.shares_nonces = authenticator.signatures.shares_nonces
        """Whether `use_nonce` has to be awaited for each signed request that `check` accepts. Read by the endpoint."""
        self._authenticator = authenticator
        self._certificates = authenticator.certificates or None
        self._observer = observer
        self._error_codec = table.error_codec
        self._origins = origins
        self._has_page = has_page
        self._find = table.access.find

    def check(self, scope: Scope, record: HttpRequest) -> RoundhouseError | None:
        """Set the principal of the record; return the error that refuses the request. Only if keys are required.

        The errors: Unauthenticated, Forbidden, NotFound, MethodNotAllowed, Overloaded.
        """
        path, method = record.path, record.method
        matched = self._find(path)
        access = None if matched is None else matched.methods.get(method)
        record.principal = UNAUTHENTICATED
        if access is EXEMPT or ((matched is None or path == "/") and self._has_page and is_page(scope)):
            return None
        if method == "OPTIONS" and is_preflight(scope["headers"]):
            return None  # a browser sends no key with it, and it is answered before the router
        try:
            if scope["query_string"]:
                check_query(scope["query_string"])
            principal = self._identify(scope, record)
            record.principal = principal
            if matched is None:
                raise NotFound(f"there is nothing at {path[:200]}; GET /docs lists every route")
            if access is None:
                raise MethodNotAllowed(method, path[:200], ", ".join(sorted(matched.methods)))
            if access.scope is not None and access.scope not in principal.scopes:
                check_scope(principal, access.scope)
        except RoundhouseError as error:
            # Its traceback refers to the frames that keep it: they would live until garbage is collected.
            return error.with_traceback(None)
        return None

    def _identify(self, scope: Scope, record: HttpRequest) -> Principal:
        """Return the sender, by key, signature or client certificate. Raises Unauthenticated, Overloaded."""
        certificate = None
        if self._certificates is not None and record.fast_path is not None:
            certificate = self._certificates.find(record.fast_path.certificate_names)
        if not record.credentials and is_signed(scope["headers"]):
            principal = self._verify(scope, record)
        elif not record.credentials and certificate is not None:
            return certificate
        else:
            principal = self._authenticator.authenticate(read_credentials(record.credentials)).principal
        if certificate is not None:
            check_same_tenant(principal, certificate)
        return principal

    def _verify(self, scope: Scope, record: HttpRequest) -> Principal:
        """Return the sender of a signed request, and set the digest of its body. Raises Unauthenticated, Overloaded."""
        verified = self._authenticator.signatures.verify(
            SignedRequest(
                record.method.encode(),
                scope["raw_path"],
                scope["query_string"],
                scope["headers"],
                scope["scheme"].encode(),
            )
        )
        record.digest = verified.digest
        return verified.stored.principal

    async def use_nonce(self, scope: Scope, record: HttpRequest) -> RoundhouseError | None:
        """Note the nonce of a signed request, if other processes share it; return the error that refuses the request.

        The errors: Unauthenticated, Overloaded, Draining. Each other part of the answer follows this.
        """
        try:
            await self._authenticator.signatures.use_nonce(scope["headers"])
        except RoundhouseError as error:
            # A replay is no request of the key.
            record.principal = UNAUTHENTICATED
            return error.with_traceback(None)
        return None

    async def refuse(self, error: RoundhouseError, scope: Scope, record: HttpRequest) -> None:
        """Send the error, count and log the request. Its body is not read: the connection is closed if one is left.

        A signed request without the permission uses its nonce too.
        """
        if record.principal.is_signed:
            error = await self.use_nonce(scope, record) or error
        if isinstance(error, Unauthenticated):
            self._observer.auth_failures[error.reason] += 1
            if error.is_guess:
                await self._authenticator.slowdown.wait(scope["client"][0] if scope.get("client") else "")
        elif isinstance(error, Forbidden):
            self._observer.auth_failures["scope"] += 1
        error = self._check_origin(scope, record) or error
        is_unread = record.fast_path is None or record.fast_path.take_body() is None
        await record.refuse(error, self._error_codec(record.path), is_unread)
        total_s = time.perf_counter() - record.started_s
        self._observer.log_request(record, total_s)
        matched = self._find(record.path)
        if record.trace is not None and matched is not None and matched.methods.get(record.method) is INFER:
            self._observer.end_trace(record, total_s)
        # Without a known key there is no name to write: the request log has the attempt.
        if record.principal.key_id:
            log_action(record, matched)

    def _check_origin(self, scope: Scope, record: HttpRequest) -> RoundhouseError | None:
        """Set the headers of the response, so that a page of an allowed origin can read it."""
        try:
            record.headers = self._origins.check(scope)
        except RoundhouseError as error:
            return error.with_traceback(None)
        return None
