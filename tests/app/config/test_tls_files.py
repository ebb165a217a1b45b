"""Read TLS files: what cannot be used is refused with the setting that is to blame."""

import os
from pathlib import Path

import pytest

from app.auth.tls import FAILED, LOADED, ServerTls
from app.config import ConfigError, check_file, load_settings
from app.config.tls_files import TlsFileError, TlsFiles, read_material
from tests.support.certificates import Authority, Pair, server_pair

AUTHORITY = Authority()
PAIR = server_pair(AUTHORITY)


def files_of(folder: Path, pair: Pair = PAIR, client_ca: bytes | None = None) -> TlsFiles:
    certificate, key = pair.write(folder, "server")
    if client_ca is None:
        return TlsFiles(certificate, key)
    (folder / "clients.pem").write_bytes(client_ca)
    return TlsFiles(certificate, key, folder / "clients.pem")


def refusal(files: TlsFiles) -> tuple[str, str]:
    with pytest.raises(TlsFileError) as refused:
        read_material(files)
    return refused.value.key, refused.value.message


def test_pair_is_read(tmp_path: Path) -> None:
    material = read_material(files_of(tmp_path, client_ca=AUTHORITY.pem))
    assert (material.certificate, material.key, material.client_ca) == (PAIR.certificate, PAIR.key, AUTHORITY.pem)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    files.key.unlink()
    key, message = refusal(files)
    assert key == "tls_key"
    assert "No such file" in message


def test_other_key_is_refused(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    files.key.write_bytes(server_pair(AUTHORITY).key)
    key, message = refusal(files)
    assert key == "tls_key"
    assert f"expected the key of {files.certificate}" in message


def test_key_with_password_is_refused(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    files.key.write_bytes(PAIR.encrypted_key)
    key, message = refusal(files)
    assert key == "tls_key"
    assert "expected a key without a password" in message


@pytest.mark.parametrize("content", [b"", b"\0\1", PAIR.key], ids=["empty", "binary", "key"])
def test_file_without_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    files = files_of(tmp_path)
    files.certificate.write_bytes(content)
    assert refusal(files)[0] == "tls_certificate"


@pytest.mark.parametrize(
    "content",
    [b"", b"text", AUTHORITY.pem + AUTHORITY.pem[:-40], AUTHORITY.pem + b"-----BEGIN X509 CRL-----\n"],
    ids=["empty", "text", "half", "revocations"],
)
def test_unusable_client_ca_is_refused(tmp_path: Path, content: bytes) -> None:
    assert refusal(files_of(tmp_path, client_ca=content))[0] == "tls_client_ca"


def test_comments_of_client_ca_are_skipped(tmp_path: Path) -> None:
    comment = "# Prüfstelle\n".encode()
    assert read_material(files_of(tmp_path, client_ca=comment + AUTHORITY.pem)).client_ca is not None


def test_every_truncation_keeps_last_good(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    tls = ServerTls(files)
    new = server_pair(AUTHORITY)
    for size in range(0, len(new.certificate) - 30, 97):
        files.certificate.write_bytes(new.certificate[:size])
        tls.check()
        assert tls.material.certificate == PAIR.certificate
    assert tls.reloads[FAILED] > 0
    new.write(tmp_path, "server")
    tls.check()
    assert tls.material.certificate == new.certificate
    assert tls.reloads[LOADED] == 1


def test_change_with_same_stamp_is_seen(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    tls = ServerTls(files)
    new = server_pair(AUTHORITY)
    before = [path.stat() for _, path in files.named()]
    files.certificate.write_bytes(new.certificate.ljust(before[0].st_size, b"\n"))
    files.key.write_bytes(new.key)
    for (_, path), status in zip(files.named(), before, strict=True):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    tls.check()
    assert tls.material.key == new.key


def test_failed_change_is_counted_once(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    tls = ServerTls(files)
    files.certificate.unlink()
    for _ in range(3):
        tls.check()
    assert tls.reloads[FAILED] == 1
    files.certificate.write_bytes(PAIR.certificate)
    tls.check()
    assert tls.reloads[LOADED] == 0, "the same content again"


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ('tls_certificate = "a.pem"', "server.tls_key", "set server.tls_key"),
        ('tls_key = "a.key"', "server.tls_key", "expected server.tls_certificate"),
        ('tls_client_ca = "a.pem"', "server.tls_client_ca", "expected server.tls_certificate"),
    ],
)
def test_incomplete_settings_are_refused(tmp_path: Path, lines: str, key: str, words: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[server]\n{lines}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    (issue,) = refused.value.issues
    assert issue.key == key
    assert words in issue.message
    assert issue.message.count("got none") == issue.message.count(", got ") == 1


def test_check_reports_unusable_files(tmp_path: Path) -> None:
    server_pair(AUTHORITY).write(tmp_path, "server")
    (tmp_path / "server.key").write_bytes(PAIR.key)
    file = tmp_path / "config.toml"
    file.write_text('[server]\ntls_certificate = "server.pem"\ntls_key = "server.key"\n', encoding="utf-8")
    (issue,) = check_file(file, {})
    assert (issue.key, issue.line) == ("server.tls_key", 3)


def test_subject_of_two_tenants_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    tenants = "".join(f'[[auth.tenants]]\nname = "{name}"\nclient_certificates = ["same"]\n' for name in "ab")
    file.write_text(tenants, encoding="utf-8")
    with pytest.raises(ConfigError, match="expected each client certificate once"):
        load_settings(file, {})
