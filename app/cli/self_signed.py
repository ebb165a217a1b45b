"""Make a certificate for `roundhouse serve --self-signed`, which tries TLS out without an authority."""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import ConfigError, ConfigIssue, LoadedSettings, ServerSettings

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

_VALID_DAYS = 30
# The clock of the client may be slow.
_BEFORE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """Settings that use the certificate, its file, and its SHA-256 as hexadecimal pairs."""

    loaded: LoadedSettings
    certificate: Path
    fingerprint: str


@contextmanager
def self_signed(loaded: LoadedSettings) -> Iterator[SelfSigned]:
    """Yield the settings with a new certificate, whose files are removed at the end. Raises ConfigError."""
    server = loaded.settings.server
    if server.tls_certificate is not None:
        message = f"expected no server.tls_certificate beside it, got {server.tls_certificate}; leave out one of them"
        raise ConfigError([ConfigIssue("command line", None, "--self-signed", message, "invalid")])
    with tempfile.TemporaryDirectory(prefix="roundhouse-tls-", ignore_cleanup_errors=True) as folder:
        certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        content, key_content, fingerprint = _make(_names(server))
        for path, text in ((certificate, content), (key, key_content)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(text)
        server = server.model_copy(update={"tls_certificate": certificate, "tls_key": key})
        settings = loaded.settings.model_copy(update={"server": server})
        yield SelfSigned(replace(loaded, settings=settings), certificate, fingerprint)


def _names(server: ServerSettings) -> list[str]:
    """Return the names and addresses by which clients may call the server, each once."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), server.host, *server.allowed_hosts]
    unusable = ("0.0.0.0", "::", "*")  # noqa: S104 - compared, not bound
    return list(dict.fromkeys(name for name in names if name not in unusable))


def _make(names: list[str]) -> tuple[bytes, bytes, str]:
    """Return the certificate and its key in PEM, and the SHA-256 of the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "roundhouse, self-signed")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), key_pem, certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _general_name(name: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
