"""A server with TLS, and clients of all kinds for it."""

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving
from tests.support.certificates import Authority, Pair, server_pair
from tests.support.models import onnx_graphs

_HEALTH = "/inference.GRPCInferenceService/ServerLive"


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server with TLS, the folder of its files, and the authority that clients trust."""

    server: RunningServer
    folder: Path
    authority: Authority

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}"

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return what a client checks the server with, and the certificate that it shows."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if pair is not None:
            context.load_cert_chain(*pair.write(self.folder, "client"))
        return context

    def client(self, pair: Pair | None = None, http2: bool = False) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.context(pair), trust_env=False, timeout=120, http2=http2)

    def ca_file(self) -> str:
        """Write the certificate of the authority; return the path of its file."""
        ca = self.folder / "ca.pem"
        ca.write_bytes(self.authority.pem)
        return str(ca)

    def curl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["curl", "-sS", "--cacert", self.ca_file(), *arguments, f"{self.url}/health/live"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def channel(self, pair: Pair | None = None, port: int = 0) -> Iterator[grpc.Channel]:
        """`port`: 0 for the own one of gRPC."""
        own = () if pair is None else (pair.key, pair.certificate)
        credentials = grpc.ssl_channel_credentials(self.authority.pem, *own)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"localhost:{port or self.server.grpc_port}", credentials, options) as channel:
            yield channel

    def call(self, pair: Pair | None = None, *metadata: tuple[str, str]) -> bytes:
        """Call ServerLive on a connection of its own. Raises grpc.RpcError."""
        with self.channel(pair) as channel:
            call: Any = channel.unary_unary(_HEALTH)
            answer: bytes = call(b"", timeout=60, metadata=metadata)
            return answer

    def serial(self) -> bytes:
        """Return the certificate that a new connection gets."""
        return ssl.get_server_certificate(("localhost", self.server.port)).encode()

    def reloads(self, outcome: str, pair: Pair | None = None) -> int:
        with self.client(pair) as client:
            page = client.get("/metrics").text
        wanted = f'roundhouse_tls_reloads_total{{outcome="{outcome}"}} '
        return int(float(next(line for line in page.splitlines() if line.startswith(wanted)).split()[-1]))


@contextmanager
def tls_serving(
    folder: Path,
    client_ca: Authority | None = None,
    more: str = "",
    authority: Authority | None = None,
    is_gated: bool = False,
    workers: int = 1,
) -> Iterator[TlsServer]:
    authority = authority or Authority()
    server_pair(authority).write(folder, "server")
    lines = [f"workers = {workers}", f'tls_certificate = "{folder}/server.pem"', f'tls_key = "{folder}/server.key"']
    if client_ca is not None:
        (folder / "clients.pem").write_bytes(client_ca.pem)
        lines.append(f'tls_client_ca = "{folder}/clients.pem"')
    config = (
        "[server]\n" + "\n".join(lines) + "\n" + onnx_entries(folder, {"echo": onnx_graphs.identity("float32", ("n",))})
    )
    with serving(folder, config + more, {GRPC_PORT: free_port()}, is_gated) as server:
        yield TlsServer(server, folder, authority)
