"""Files of compiled code, checked before use: unpickling or linking damaged code may end the process."""

import hashlib
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_MAGIC = b"roundhouse code 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES
SUFFIX = ".code"
_MAX_WRITE_S = 1.0
_writing = threading.Lock()


class DamagedCode(Exception):
    """The file is not what was written for this key; the message has the reason."""


def read_code(file: Path, key: str) -> bytes | None:
    """Return the content that was written for `key`, None where there is no file. Raises DamagedCode."""
    try:
        whole = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedCode(f"it cannot be read: {error.strerror}") from error
    if not whole.startswith(_MAGIC) or len(whole) < _HEAD_BYTES:
        raise DamagedCode("it is empty, truncated or no compiled code")
    content = whole[_HEAD_BYTES:]
    if whole[len(_MAGIC) : _HEAD_BYTES] != _digest(key, content):
        raise DamagedCode("its digest is that of other bytes, or of code for another function or CPU")
    return content


def write_code(file: Path, key: str, content: bytes) -> None:
    """Replace the file, so that after a crash or a power cut it is the old one or the new one. Raises OSError."""
    with _writing:
        _write(file, key, content)


def end_process(status: int) -> NoReturn:
    """End this process at once, but not within a write of another thread: that would leave a temporary file."""
    _writing.acquire(timeout=_MAX_WRITE_S)
    os._exit(status)


def _write(file: Path, key: str, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(_MAGIC + _digest(key, content) + content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(name, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(key: str, content: bytes) -> bytes:
    # The key has a fixed length before the content: no key and content read as other ones.
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + content).digest()
