"""Open the gRPC port of an ingress, which ingresses on one node share."""

from typing import TYPE_CHECKING

import structlog

from app.auth.tls import ServerTls
from app.config import Settings
from app.workers.sockets import CannotListenError

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)


def open_grpc_listener(settings: Settings, tls: ServerTls | None) -> "GrpcListener | None":
    """Open the port of gRPC; None if it is off, or if the default port is in use. Raises CannotListenError."""
    if settings.server.grpc_port == 0:
        return None
    from app.grpc.bridge.server import CannotListen
    from app.grpc.listener import DEFAULT_PORT, DEFAULT_PORT_IN_USE, open_shared_listener

    port = settings.server.grpc_port or DEFAULT_PORT
    try:
        return open_shared_listener(settings.server, port, is_checked=settings.auth.mode != "off", tls=tls)
    except CannotListen as error:
        if settings.server.grpc_port is not None:
            raise CannotListenError(f"server.grpc_port: {error}; choose another port, or 0 for no gRPC") from error
        log.warning(DEFAULT_PORT_IN_USE, reason=str(error))
        return None
