"""Read and write the keys file: TOML with one `[[keys]]` table for each key."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from app.auth.keys import Key
from app.auth.principal import Scope
from app.config.auth_settings import Pattern, TenantName
from app.config.issues import describe_error, format_location, format_value
from memory.settings import SETTINGS_RULES

MAX_FILE_BYTES = 16 * 1024**2
MAX_KEYS = 50_000
LOCK_TIMEOUT_S = 10.0

_HEADER = "# Keys of Roundhouse, written by `roundhouse keys`. Of each secret the file holds the SHA-256 only.\n"
_TABLE = re.compile(r"^(?=\[\[keys\]\])", re.MULTILINE)
# The parser holds the interpreter's lock: between pieces the event loop runs. 40 tables take about 1 ms.
_TABLES_IN_PIECE = 40
# Without the value: of a signed key the digest is the secret of its signatures.
_EXPECTED: Mapping[str | int, str] = {
    "id": "12 lowercase letters and digits",
    "replaced_by": "12 lowercase letters and digits",
    "tenant": "1 to 64 letters, digits, dots, underscores and hyphens",
    "secret_sha256": "64 hexadecimal digits",
}
_KeyId = Annotated[str, Field(pattern=r"^[a-z0-9]{12}$")]
# Other times would have no year from 1 to 9999 in UTC, in which they are written.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_Time = Annotated[AwareDatetime, Field(ge=_FIRST, le=_LAST)]


class InvalidKeysFile(Exception):
    """The keys file cannot be used, or not be written. The message has the file and the reason, and no digest."""


class FileVersion(NamedTuple):
    """Equal for two reads of a file that did not change."""

    mtime_ns: int
    size: int
    inode: int


class _Row(BaseModel):
    """One `[[keys]]` table."""

    model_config = SETTINGS_RULES

    id: _KeyId
    tenant: TenantName
    scopes: Annotated[tuple[Annotated[Scope, Field(strict=False)], ...], Field(strict=False, min_length=1)]
    models: Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1)] = ("*",)
    collections: Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1)] = ("*",)
    secret_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None = None
    signed: bool = False
    replaced_by: _KeyId | None = None

    def key(self) -> Key:
        return Key(
            self.id,
            self.tenant,
            frozenset(self.scopes),
            bytes.fromhex(self.secret_sha256),
            self.created.timestamp(),
            self.models,
            None if self.expires is None else self.expires.timestamp(),
            self.signed,
            self.replaced_by or "",
            self.collections,
        )


def file_version(path: Path) -> FileVersion | None:
    """Return the version of the file; None without a file. Raises OSError."""
    try:
        return _version(path.stat())
    except FileNotFoundError:
        return None


def read_keys(path: Path) -> tuple[dict[str, Key], FileVersion | None]:
    """Return the keys by id, and the version of the file; no key and None without a file. Raises InvalidKeysFile."""
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidKeysFile(f"{path}: expected a file, got a folder or a device; correct auth.keys_file")
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}, None
    except IsADirectoryError as error:
        raise InvalidKeysFile(f"{path}: expected a file, got a folder; correct auth.keys_file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InvalidKeysFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidKeysFile(f"{path}: expected at most 16 MiB, got more; revoke keys")
    try:
        return parse_keys(content.decode("utf-8-sig").replace("\r\n", "\n")), _version(status)
    except UnicodeDecodeError as error:
        raise InvalidKeysFile(f"{path}: expected UTF-8 text, got other bytes; name the keys file") from error
    except ValueError as error:
        raise InvalidKeysFile(f"{path}: {error}") from error


def parse_keys(text: str) -> dict[str, Key]:
    """Return the keys of a file's text by id. Raises ValueError with the number of the table, from 0."""
    keys: dict[str, Key] = {}
    number = 0
    for piece in _pieces(text):
        for table in _tables(piece, number):
            key = _parse_table(table, number)
            if key.key_id in keys:
                raise ValueError(f"keys[{number}].id: expected unique ids, got {key.key_id} twice; remove one")
            if number == MAX_KEYS:
                raise ValueError(f"keys: expected at most {MAX_KEYS} keys, got more; revoke keys")
            keys[key.key_id] = key
            number += 1
        time.sleep(0)
    return keys


def format_keys(keys: Iterable[Key]) -> str:
    """Return the text of a file with these keys."""
    return _HEADER + "".join(map(_format_key, keys))


@contextmanager
def editing(path: Path) -> Iterator[dict[str, Key]]:
    """Yield the keys of the file by id, and write them at the end of the block, unless it raises.

    One process at a time is within the block. The file is replaced as a whole, with mode 0600: a reader sees the old or
    the new one. Raises InvalidKeysFile; the old file is then unchanged.
    """
    import filelock  # not by the server

    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise InvalidKeysFile(f"{path}: expected a file in an existing folder, got none; create the folder")
    try:
        with filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S, mode=0o600):
            keys, _ = read_keys(path)
            yield keys
            _write(path, format_keys(keys.values()).encode())
    except filelock.Timeout as error:
        raise InvalidKeysFile(f"{path}: is locked by another `roundhouse keys`; try again when it has ended") from error
    except OSError as error:
        raise InvalidKeysFile(
            f"{path}: cannot be written: {error.strerror or error}; the keys are unchanged"
        ) from error


def _write(path: Path, content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise InvalidKeysFile(f"{path}: expected at most 16 MiB, got {len(content)} bytes; revoke keys")
    # One name: the lock is held, so an existing file is of a writer that was killed.
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            _keep_owner(stream.fileno(), path)
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _keep_owner(descriptor: int, path: Path) -> None:
    """Give the new file to the old one's owner: root may edit the file of a server that is not root."""
    with suppress(OSError, AttributeError):  # AttributeError: Windows
        before = path.stat()
        os.fchown(descriptor, before.st_uid, before.st_gid)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _version(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_mtime_ns, status.st_size, status.st_ino)


def _pieces(text: str) -> Iterator[str]:
    """Split the text before tables. A multi-line string with such a line makes both pieces invalid."""
    tables = _TABLE.split(text)
    for start in range(0, len(tables), _TABLES_IN_PIECE):
        yield "".join(tables[start : start + _TABLES_IN_PIECE])


def _tables(piece: str, number: int) -> list[Any]:
    try:
        document = tomli.loads(piece)
    except tomli.TOMLDecodeError as error:
        raise ValueError(f"invalid TOML from keys[{number}] on: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(f"invalid TOML from keys[{number}] on: nested lists") from error
    tables = document.pop("keys", [])
    if document:
        raise ValueError(f"{format_location((next(iter(document)),))}: unknown key; expected [[keys]] tables only")
    if not isinstance(tables, list):
        raise ValueError(f"keys: expected [[keys]] tables, got {format_value(tables)}")
    return tables


def _parse_table(table: Any, number: int) -> Key:
    try:
        return _Row.model_validate(table).key()
    except ValidationError as refusal:
        error = refusal.errors(include_url=False)[0]
        location = format_location(("keys", number, *error["loc"]))
        if error["type"] == "extra_forbidden":
            message = "unknown key; remove it"
        elif error["type"] == "missing":
            message = "expected a value, got none; create the key again"
        elif error["loc"][0] in _EXPECTED:
            message = f"expected {_EXPECTED[error['loc'][0]]}; create the key again"
        else:
            message = describe_error(error)
        raise ValueError(f"{location}: {message}") from None


def _format_key(key: Key) -> str:
    scopes = ", ".join(f'"{scope}"' for scope in Scope if scope in key.scopes)
    lines = [
        "",
        "[[keys]]",
        f'id = "{key.key_id}"',
        f'tenant = "{key.tenant}"',
        f"scopes = [{scopes}]",
        f"models = [{', '.join(map(_quote, key.models))}]",
        f'secret_sha256 = "{key.secret_sha256.hex()}"',
        f"created = {_format_time(key.created_s)}",
    ]
    if key.collections != ("*",):
        lines.append(f"collections = [{', '.join(map(_quote, key.collections))}]")
    if key.expires_s is not None:
        lines.append(f"expires = {_format_time(key.expires_s)}")
    if key.is_signed:
        lines.append("signed = true")
    if key.replaced_by:
        lines.append(f'replaced_by = "{key.replaced_by}"')
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """Return a TOML string. Escapes quotes, backslashes and all characters that TOML forbids in a string."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _format_time(time_s: float) -> str:
    return datetime.fromtimestamp(int(time_s), UTC).isoformat().replace("+00:00", "Z")
