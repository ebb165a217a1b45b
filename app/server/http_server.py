"""Configure uvicorn with the bounds of connections and open files, and accept connections for it."""

import asyncio
import os
import socket
from functools import partial
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp

from app.auth.tls import ServerTls
from app.config import ConfigError, ConfigIssue, LoadedSettings, ServerSettings
from app.config.tls_files import TlsFileError
from app.http.listener.acceptor import Acceptor
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.http2.clocks import Http2Bounds, http2_bounds
from app.http.listener.http2.connection import Http2Connection
from app.http.listener.http2.exchange import AsgiStreams
from app.http.listener.protocol import BoundedHttpProtocol
from app.http.listener.sockets import BACKLOG
from app.http.listener.tls import tls_protocol
from app.http.origins import OriginRules
from app.http.prefixes import PrefixRules
from frameworks.scheduling.shared_limits import byte_limit
from memory.shared_counters import CounterRow

# Clients and load balancers reuse connections. uvicorn's default of 5 s would often close one as it is reused.
_KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    """uvicorn's server. It accepts all connections that wait in a round of the event loop, see Acceptor."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections from the listening `sockets`."""
        if os.name == "nt":
            # asyncio's loop for Windows has no `add_reader`, and accepts many connections in a round itself.
            await super().startup(sockets)
            return
        await super().startup([])
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        make_protocol = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=loop,
        )
        for listener in sockets or ():
            acceptor = Acceptor(loop, listener, make_protocol)
            acceptor.start()
            # uvicorn closes it, and waits for its end.
            self.servers.append(acceptor)  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, when all accepted connections have their protocols.

        uvicorn ends the connections that it finds. Another one would keep the server until the drain timeout, for as
        long as its client sends requests.
        """
        for server in self.servers:
            if isinstance(server, Acceptor):
                server.close()
                await server.wait_closed()
        await super().shutdown(sockets)


def uvicorn_config(app: ASGIApp, connections: Connections, settings: ServerSettings) -> uvicorn.Config:
    """Return the configuration of a server for an application."""
    return uvicorn.Config(
        app,
        loop="uvloop" if os.name != "nt" else "asyncio",
        http=_http_class(connections, http2_bounds(settings)),
        interface="asgi3",
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=whole_seconds(settings.drain_timeout_s),
        backlog=BACKLOG,
    )


def whole_seconds(drain_timeout_s: float) -> int:
    """Return a drain timeout as uvicorn takes it."""
    return max(1, round(drain_timeout_s))


def open_connections(
    settings: ServerSettings, tls: ServerTls | None, row: CounterRow | None = None, logs_warnings: bool = True
) -> Connections:
    """Return the bounds of connections, as far as the limit on file descriptors permits.

    `row`: counts the connections and bodies of all workers; None for one process. `logs_warnings`: False in workers, as
    the supervisor has logged them.
    """
    most = connections_within_limit(settings.max_connections, logs_warnings)
    bounds = ConnectionBounds(
        settings.header_timeout_s, settings.body_timeout_s, most if row is None else settings.max_connections
    )
    return Connections(bounds, byte_limit(row, settings.max_buffered_bytes), tls, row, most)


def prefix_rules(server: ServerSettings) -> PrefixRules:
    """Return the prefixes of paths that are served."""
    return PrefixRules(server.root_path, server.trusted_proxies)


def origin_rules(server: ServerSettings) -> OriginRules:
    return OriginRules((server.host, socket.gethostname(), *server.allowed_hosts), server.cors_origins)


def server_tls(loaded: LoadedSettings) -> ServerTls | None:
    """Read the certificate; None without TLS. Raises ConfigError."""
    files = loaded.tls_files()
    try:
        return None if files is None else ServerTls(files)
    except TlsFileError as error:
        raise ConfigError([ConfigIssue("config", None, f"server.{error.key}", error.message, "invalid")]) from error


def _http_class(connections: Connections, http2: Http2Bounds) -> Any:
    """Return the class of connections for uvicorn.Config: HTTP/1.1 and HTTP/2 on one port."""

    def make_http2(http: Any) -> Http2Connection:
        state = http.server_state
        streams = AsgiStreams(http.app, http.root_path, state, http.app_state, connections)
        return Http2Connection(streams.open, http2, connections, state.connections)

    if connections.tls is None:
        parts = {"limits": connections, "make_http2": staticmethod(make_http2)}
        return type("HttpProtocol", (BoundedHttpProtocol,), parts)
    http_class = type("HttpProtocol", (BoundedHttpProtocol,), {"limits": connections})

    def make_chosen(protocol: str | None, **parts: Any) -> asyncio.Protocol:
        """`protocol`: by ALPN."""
        http: asyncio.Protocol = http_class(**parts)
        return make_http2(http) if protocol == "h2" else http

    return tls_protocol(make_chosen, connections.tls, connections)


log = structlog.get_logger(__name__)

_FEW = 1024
"""Fewer connections than this may not suffice for the clients of a server."""

_RESERVED = 1536
"""File descriptors for other uses than HTTP connections: 1,024 for those of gRPC, and 512 for model files and pipes."""


def connections_within_limit(max_connections: int, logs_warnings: bool = True) -> int:
    """Raise the soft limit on open files as far as `max_connections` need and the hard limit permits.

    Returns how many connections fit below the limit. A warning says so if they are fewer, and below 1,024.
    """
    if os.name == "nt":
        return max_connections
    import resource

    needed = max_connections + _RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS refuses more than its own maximum, although the hard limit is infinite
        wanted = soft
    if wanted >= needed:
        return max_connections
    # Below a very low limit half of the descriptors are for connections.
    fitting = max(wanted - _RESERVED, wanted // 2, 1)
    if not logs_warnings or fitting >= _FEW:
        return fitting
    log.warning(
        "the limit on open files is lower than server.max_connections needs",
        limit=wanted,
        needed=needed,
        max_connections=fitting,
    )
    return fitting
