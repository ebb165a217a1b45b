"""Certificates for tests: authorities, and what they sign."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.now(UTC)
_PASSWORD = b"secret"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes
    encrypted_key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.pem and NAME.key; return their paths."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        key.chmod(0o600)
        return certificate, key


class Authority:
    """A certificate authority. `pem`: its certificate."""

    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key, days=30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *others: str, days: int = 30) -> Pair:
        """Sign a certificate. `name`: its common name; `others`: addresses, URIs and DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key, days)
        if others:
            names = x509.SubjectAlternativeName([_alternative(other) for other in others])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return Pair(certificate, _pem(key, serialization.NoEncryption()), _encrypted(key))


def server_pair(authority: Authority) -> Pair:
    """Return a certificate for the names of this machine that tests use."""
    return authority.issue("server", "localhost", "127.0.0.1")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - timedelta(days=100))
        .not_valid_after(_NOW + timedelta(days=days))
    )


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _encrypted(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _pem(key, serialization.BestAvailableEncryption(_PASSWORD))


def _pem(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
