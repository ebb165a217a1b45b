"""Read the certificate, its key and the client CA for TLS, and check that they fit."""

import ssl
from dataclasses import dataclass
from pathlib import Path

_MAX_FILE_BYTES = 1024 * 1024
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_REVOCATIONS = b"-----BEGIN X509 CRL-----"
_KEY = b"PRIVATE KEY-----"

Stamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode."""


class TlsFileError(Exception):
    """The files cannot be used. `key`: of the setting in `[server]`; str() begins with it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"server.{key}: {message}")
        self.key = key
        self.message = message


class _KeyIsEncrypted(Exception):
    """OpenSSL asked for a password."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The absolute paths of `[server]`."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def named(self) -> list[tuple[str, Path]]:
        """Return the paths with the keys of their settings."""
        paths = [("tls_certificate", self.certificate), ("tls_key", self.key)]
        if self.client_ca is not None:
            paths.append(("tls_client_ca", self.client_ca))
        return paths

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return the stamp of each file; None for one without."""
        return tuple(_stamp(path) for _, path in self.named())

    @property
    def is_key_exposed(self) -> bool:
        """Whether every user of the machine can read the key."""
        return bool(self.key.stat().st_mode & 0o004)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Contents of the files, in PEM, and the contexts for new connections: of HTTP, and of HTTP/2 only.

    `expires_s`: Unix time.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    http2_context: ssl.SSLContext
    expires_s: float


def read_material(files: TlsFiles) -> TlsMaterial:
    """Read the files. Raises TlsFileError, also if they change meanwhile."""
    contents = _contents(files)
    certificate, key = contents[:2]
    client_ca = contents[2] if files.client_ca is not None else None
    contexts = [_server_context(files, certificate, key, protocols) for protocols in (["h2", "http/1.1"], ["h2"])]
    if client_ca is not None:
        for context in contexts:
            _require_client_certificates(context, client_ca)
    expires_s = _expiry(certificate)
    if _contents(files) != contents:
        # The context reads the paths itself: it must hold what was checked.
        raise TlsFileError("tls_certificate", "expected files that do not change while they are read, got new ones")
    return TlsMaterial(certificate, key, client_ca, contexts[0], contexts[1], expires_s)


def _contents(files: TlsFiles) -> list[bytes]:
    contents = []
    for key, path in files.named():
        try:
            with path.open("rb") as stream:
                content = stream.read(_MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise TlsFileError(key, f"expected a readable file, got {path} ({reason}); correct the path") from error
        if len(content) > _MAX_FILE_BYTES:
            raise TlsFileError(key, f"expected a PEM file, got {path} with more than 1 MiB; name another file")
        contents.append(content)
    return contents


def _server_context(files: TlsFiles, certificate: bytes, key: bytes, protocols: list[str]) -> ssl.SSLContext:
    if _CERTIFICATE not in certificate:
        raise TlsFileError(
            "tls_certificate",
            f"expected a certificate in PEM, got {files.certificate} without one; convert it with openssl x509",
        )
    if _KEY not in key:
        raise TlsFileError(
            "tls_key", f"expected a private key in PEM, got {files.key} without one; convert it with openssl pkey"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(files.certificate, files.key, _refuse_password)
    except _KeyIsEncrypted:
        raise TlsFileError(
            "tls_key",
            f"expected a key without a password, got the encrypted {files.key}; "
            "decrypt it with openssl pkey -in KEY -out NEW_KEY",
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"expected the key of {files.certificate}, got another one in {files.key}; replace both files"
        else:
            message = f"expected a certificate and its key in PEM, got {error.reason or error}; replace both files"
        raise TlsFileError("tls_key", message) from error
    except OSError as error:
        raise TlsFileError("tls_key", f"expected readable files, got {error.strerror}; correct the path") from error
    return context


def _refuse_password() -> str:
    # Without this OpenSSL would ask for it on the terminal.
    raise _KeyIsEncrypted


def _require_client_certificates(context: ssl.SSLContext, client_ca: bytes) -> None:
    if _REVOCATIONS in client_ca:
        raise TlsFileError(
            "tls_client_ca",
            "expected certificates only, got a revocation list, which is not supported; "
            "remove it, and the certificates that are revoked from their CA",
        )
    try:
        context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))  # comments may hold any text
        is_empty = not context.cert_store_stats()["x509"]
    except (ssl.SSLError, ValueError):  # ValueError: an empty file
        is_empty = True
    if is_empty:
        raise TlsFileError(
            "tls_client_ca", "expected certificates in PEM, got a file without a valid one; replace the file"
        )
    context.verify_mode = ssl.CERT_REQUIRED
    # An intermediate CA may be trusted without its root, as over gRPC.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # A resumed session would not show its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _expiry(certificate: bytes) -> float:
    """Return when the first certificate expires, as Unix time. Raises TlsFileError."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(certificate)[0].not_valid_after_utc.timestamp()
    except ValueError as error:
        raise TlsFileError("tls_certificate", f"expected certificates in PEM, got {error}; replace the file") from error


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
