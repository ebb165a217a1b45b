"""The keys file: its text, and writers that are killed, run at once, or find a full disk."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.key_file import InvalidKeysFile, editing, format_keys, parse_keys, read_keys
from app.auth.keys import Key, create_key
from app.auth.principal import Scope

ROOT = Path(__file__).parents[3]
ID = "abcdefghij01"
TABLE = f"""[[keys]]
id = "{ID}"
tenant = "search"
scopes = ["infer"]
secret_sha256 = "{"0" * 64}"
created = 2026-11-22T16:00:00Z
"""
# The largest time that a file can hold: the end of the year 9999.
_TIMES_S = st.integers(0, 253_402_300_799).map(float)
_IDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=12)
KEYS = st.builds(
    Key,
    key_id=_IDS,
    tenant=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    scopes=st.frozensets(st.sampled_from(Scope), min_size=1),
    secret_sha256=st.binary(min_size=32, max_size=32),
    created_s=_TIMES_S,
    models=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), min_size=1, max_size=3).map(tuple),
    expires_s=st.none() | _TIMES_S,
    is_signed=st.booleans(),
    replaced_by=st.just("") | _IDS,
    collections=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3).map(tuple),
)


def add_key(file: Path) -> str:
    """Add a key to the file; return its id."""
    key, _ = create_key("search", frozenset({Scope.INFER}), 0.0)
    with editing(file) as keys:
        keys[key.key_id] = key
    return key.key_id


@given(st.lists(KEYS, max_size=100, unique_by=lambda key: key.key_id))
def test_written_keys_are_read_back(keys: list[Key]) -> None:
    assert list(parse_keys(format_keys(keys)).values()) == keys


@given(st.text(max_size=200) | st.text("[]key=\n\"'{}#.", max_size=60))
def test_parse_of_any_text_raises_valueerror_only(text: str) -> None:
    try:
        assert parse_keys(text) == {}
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most texts raise


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[[keys]]", "[[key]]"), "key: unknown key; expected [[keys]] tables only"),
        ((ID, ID[1:]), "keys[1].id: expected 12 lowercase letters and digits; create the key again"),
        (('"search"', '"../x"'), "keys[1].tenant: expected 1 to 64 letters"),
        (('["infer"]', "[]"), "keys[1].scopes: expected"),
        (('["infer"]', '["admin"]'), "keys[1].scopes[0]: expected"),
        (("0" * 64, "0" * 63), "keys[1].secret_sha256: expected 64 hexadecimal digits; create the key again"),
        (("0" * 64, "g" * 64), "keys[1].secret_sha256: expected 64 hexadecimal digits"),
        (("16:00:00Z", "16:00:00"), "keys[1].created: expected"),
        (("2026-11-22T16:00:00Z", "1969-12-31T23:59:59Z"), "keys[1].created: expected at least 1970-01-01"),
        (("2026-11-22T16:00:00Z", "9999-12-31T23:59:59-12:00"), "keys[1].created: expected at most 9999-12-31"),
        (("created", "expires"), "keys[1].created: expected a value, got none"),
        (("tenant", "secret"), "keys[1].tenant: expected a value, got none"),
        (("tenant =", "signed = 1\ntenant ="), "keys[1].signed: expected true or false, got 1"),
        (("tenant =", "secret = 1\ntenant ="), "keys[1].secret: unknown key; remove it"),
        (("= [", "= "), "invalid TOML from keys[0] on"),
        (("abcdefghij01", "000000000000"), "keys[1].id: expected unique ids, got 000000000000 twice"),
    ],
)
def test_invalid_table_is_named(change: tuple[str, str], words: str) -> None:
    first = TABLE.replace(ID, "000000000000")
    assert len(parse_keys(first + TABLE)) == 2
    with pytest.raises(ValueError, match=r"key|TOML") as refused:
        parse_keys(first + TABLE.replace(*change))
    assert str(refused.value).startswith(words)
    assert "0" * 63 not in str(refused.value)


def test_table_number_counts_from_file_start() -> None:
    """The text is parsed in pieces."""
    tables = [TABLE.replace(ID, f"{number:012d}") for number in range(200)]
    assert len(parse_keys("# a comment\n" + "\n".join(tables))) == 200
    tables[150] = tables[150].replace("search", "no tenant")
    with pytest.raises(ValueError, match=r"^keys\[150\]\.tenant: "):
        parse_keys("".join(tables))


def test_missing_file_has_no_keys(tmp_path: Path) -> None:
    assert read_keys(tmp_path / "keys.toml") == ({}, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "expected UTF-8 text, got other bytes"),
        pytest.param(b"#" * (16 * 1024**2 + 1), "expected at most 16 MiB, got more", id="large"),
        (b"keys = " + b"[" * 5000, "invalid TOML"),
        (b"keys = 3", "expected [[keys]] tables, got 3"),
    ],
)
def test_unusable_file_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidKeysFile) as refused:
        read_keys(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize("path", ["", "bad\0name"])
def test_folder_and_bad_path_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidKeysFile):
        read_keys(tmp_path / path)


def test_written_file_has_mode_0600(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    before = os.umask(0)
    try:
        add_key(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o666)
        add_key(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_writer_keeps_link_and_replaces_target(tmp_path: Path) -> None:
    (tmp_path / "link.toml").symlink_to(tmp_path / "target.toml")
    key_id = add_key(tmp_path / "link.toml")
    assert (tmp_path / "link.toml").is_symlink()
    assert list(read_keys(tmp_path / "target.toml")[0]) == [key_id]


def test_error_in_edit_leaves_old_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key_id = add_key(file)

    def fail() -> None:
        with editing(file) as keys:
            keys.clear()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(read_keys(file)[0]) == [key_id]


@contextmanager
def running(code: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run Python code that can use `add_key`, `file` and `os` in a process of its own."""
    head = f"import os, sys, time\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\n"
    head += f"from tests.app.auth.test_key_file import add_key, editing\nfile = Path({str(file)!r})\n"
    with subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.extended
@pytest.mark.parametrize("function", ["fsync", "open"])
def test_killed_writer_leaves_old_file(function: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    first = add_key(file)
    # The writer stops before its new file is complete, or before it exists.
    code = f"""
own, lock = os.{function}, str(file) + ".lock"
def stop(*arguments, **options):
    if {function == "fsync"} or str(arguments[0]).endswith(".new"):
        print("here", flush=True)
        time.sleep(600)
    return own(*arguments, **options)
os.{function} = stop
add_key(file)
"""
    with running(code, file) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"
        assert list(read_keys(file)[0]) == [first]
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert list(read_keys(file)[0]) == [first]
    second = add_key(file)
    assert list(read_keys(file)[0]) == [first, second]
    assert {path.name for path in tmp_path.iterdir()} == {"keys.toml", "keys.toml.lock"}


@pytest.mark.extended
def test_two_writers_lose_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    code = "for _ in range(15):\n    add_key(file)\n"
    with running(code, file) as one, running(code, file) as other:
        assert (one.wait(), other.wait()) == (0, 0)
    assert len(read_keys(file)[0]) == 30


def test_full_disk_leaves_old_file(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    file = tmp_path / "keys.toml"
    first = add_key(file)
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    add_key(file)
except Exception as error:
    print(type(error).__name__, error)
"""
    with running(code, file) as writer:
        assert writer.stdout is not None
        message = writer.stdout.read()
    assert message.startswith("InvalidKeysFile")
    assert "cannot be written: File too large; the keys are unchanged" in message
    assert list(read_keys(file)[0]) == [first]
    assert not list(tmp_path.glob(".*"))


def test_locked_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    monkeypatch.setattr("app.auth.key_file.LOCK_TIMEOUT_S", 0.01)
    code = "with editing(file):\n    print('here', flush=True)\n    time.sleep(600)\n"
    with running(code, file) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"
        with pytest.raises(InvalidKeysFile, match="is locked by another `roundhouse keys`; try again"):
            add_key(file)
