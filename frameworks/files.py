"""What files hold, as a short name: the same bytes give the same one, wherever they lie."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_DIGEST_BYTES = 16
# A file that was not touched is not read again at a reload: gigabytes, for a large model.
_known: dict[tuple[str, int, int, int], str] = {}
_MOST_KNOWN = 1000


def contents_name(files: Iterable[Path], made_by: str) -> str:
    """32 hexadecimal digits that change with the bytes of any of the files, with their order, and with `made_by`.

    Raises OSError where a file cannot be read.
    """
    whole = hashlib.blake2b(made_by.encode(), digest_size=_DIGEST_BYTES)
    for file in files:
        whole.update(b"\0" + file_digest(file).encode())
    return whole.hexdigest()


def file_digest(file: Path) -> str:
    """BLAKE2b of a file's bytes; read once as long as its size, its time of change and its inode stay. Raises OSError.

    The time is looked at before reading: a file that changes meanwhile is read again the next time.
    """
    state = os.stat(file)
    key = (str(file), state.st_size, state.st_mtime_ns, state.st_ino)
    if key not in _known:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = digest
    return _known[key]
