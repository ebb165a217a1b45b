"""Test the store of fetched models: versions, resumption, checks, limits and a source that does not answer."""

import errno
import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import Framework, SourceChanged
from frameworks.sources.store import Cancelled, Fetched, Progress, SourceStore
from tests.frameworks.sources.fake_remote import CHUNK, CONTENTS, WEIGHTS, FakeSource

ADDRESS = parse_address("hf://org/name")
MAX_BYTES = 1 << 20
OTHER = WEIGHTS[::-1]


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def store(tmp_path: Path, source: FakeSource) -> SourceStore:
    return SourceStore(tmp_path, MAX_BYTES, source.open, retry_delays_s=(0, 0, 0))


def contents(fetched: Fetched) -> dict[str, bytes]:
    files = (file for file in fetched.folder.rglob("*") if file.is_file() and file.name != ".roundhouse.json")
    return {file.relative_to(fetched.folder).as_posix(): file.read_bytes() for file in files}


def parts(store: SourceStore) -> list[Path]:
    return sorted(store.folder(ADDRESS).glob("partial/*/*.part"))


def fail_at(offset: int, error: Exception, times: int = 1) -> "FailAt":
    return FailAt(offset, error, times)


class FailAt:
    """Raise an error before the chunk at an offset of the weights, so many times."""

    def __init__(self, offset: int, error: Exception, times: int) -> None:
        self.offset, self.error, self.times = offset, error, times

    def __call__(self, name: str, offset: int) -> None:
        if name == "model.safetensors" and offset == self.offset and self.times:
            self.times -= 1
            raise self.error


@pytest.mark.parametrize("framework", [None, "pytorch"])
def test_fetch_returns_served_files(store: SourceStore, source: FakeSource, framework: Framework | None) -> None:
    progress = Progress()
    fetched = store.fetch(ADDRESS, framework, progress)
    assert contents(fetched) == {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    assert (fetched.framework, fetched.revision) == ("pytorch", "a" * 40)
    assert fetched.downloaded_bytes == progress.received_bytes == progress.total_bytes == len(WEIGHTS) + 2
    assert fetched.folder.is_absolute()
    assert fetched.folder.is_relative_to(store.folder(ADDRESS))
    assert source.closed == 1


def test_second_fetch_downloads_nothing(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    second = store.fetch(ADDRESS, None)
    assert second.folder == first.folder
    assert second.is_cached
    assert not first.is_cached
    assert source.listings == 2


def test_cached_commit_needs_no_network(store: SourceStore, source: FakeSource) -> None:
    address = parse_address(f"hf://org/name@{'a' * 40}")
    first = store.fetch(address, "pytorch")
    assert store.fetch(address, "pytorch") == Fetched(first.folder, "pytorch", "a" * 40)
    assert source.listings == 1


def test_framework_is_that_of_fetch_without_download(store: SourceStore, source: FakeSource) -> None:
    assert store.framework(ADDRESS) == "pytorch"
    assert source.reads == []
    assert source.closed == 1
    source.on_list = raise_unavailable
    with pytest.raises(SourceUnavailable):
        store.framework(ADDRESS)
    source.on_list = lambda: None
    store.fetch(ADDRESS, "pytorch")
    source.on_list = raise_unavailable
    assert store.framework(ADDRESS) == "pytorch"
    source.on_list, source.files = (lambda: None), {"notes.txt": b""}
    with pytest.raises(InvalidModel, match=r"expected model\.safetensors"):
        store.framework(ADDRESS)


def test_changed_content_becomes_other_version(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    source.files["config.json"] = b'{"a": 1}'
    second = store.fetch(ADDRESS, "pytorch")
    assert contents(second)["config.json"] == b'{"a": 1}'
    assert contents(first)["config.json"] == b"{}"


def test_old_versions_except_newest_are_removed(store: SourceStore, source: FakeSource) -> None:
    pinned = store.fetch(parse_address("hf://org/name@v1"), "pytorch").folder
    folders = []
    for number in range(4):
        source.files["config.json"] = b'{"a": %d}' % number
        folders.append(store.fetch(ADDRESS, "pytorch").folder)
    assert [folder.exists() for folder in [pinned, *folders]] == [True, False, False, True, True]


def test_commit_of_other_files_keeps_version(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    source.files["README.md"], source.revision = b"text", "b" * 40
    second = store.fetch(ADDRESS, "pytorch")
    assert (second.folder, second.revision, second.is_cached) == (first.folder, "b" * 40, True)
    source.on_list = raise_unavailable
    assert store.fetch(ADDRESS, "pytorch") == second


@pytest.mark.parametrize("has_links", [True, False])
def test_unchanged_files_are_not_downloaded_again(
    store: SourceStore, source: FakeSource, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, "no links")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    store.fetch(ADDRESS, "pytorch")
    source.files["config.json"] = b'{"a": 1}'
    source.reads.clear()
    fetched = store.fetch(ADDRESS, "pytorch")
    assert contents(fetched) == {"model.safetensors": WEIGHTS, "config.json": b'{"a": 1}'}
    assert (("model.safetensors", 0) in source.reads) is not has_links
    assert fetched.downloaded_bytes == (8 if has_links else 8 + len(WEIGHTS))


def test_folder_of_address_ignores_revision(store: SourceStore) -> None:
    assert store.folder(parse_address("hf://org/name@v1")) == store.folder(ADDRESS)
    others = ["hf://org/name2", "hf://org/name/onnx", "s3://org/name", "hf://org-name/a", "hf://org/name-a"]
    assert len({store.folder(parse_address(each)) for each in [str(ADDRESS), *others]}) == 1 + len(others)
    assert store.folder(ADDRESS).parent.name == "hf"
    assert not store.folder(ADDRESS).exists()


@pytest.mark.parametrize("has_hashes", [True, False])
def test_broken_connection_resumes_where_it_ended(store: SourceStore, source: FakeSource, has_hashes: bool) -> None:
    source.has_hashes = has_hashes
    source.before_chunk = fail_at(3 * CHUNK, SourceUnavailable("cut"))
    fetched = store.fetch(ADDRESS, "pytorch")
    assert contents(fetched)["model.safetensors"] == WEIGHTS
    assert source.reads == [("config.json", 0), ("model.safetensors", 0), ("model.safetensors", 3 * CHUNK)]
    assert fetched.downloaded_bytes == len(WEIGHTS) + 2


def test_repeated_failures_end_fetch(store: SourceStore, source: FakeSource) -> None:
    source.before_chunk = fail_at(3 * CHUNK, SourceUnavailable("cut"), times=99)
    with pytest.raises(SourceUnavailable, match="cut; the cache has no copy: connect"):
        store.fetch(ADDRESS, "pytorch")
    assert len(source.reads) == 1 + 1 + 3
    assert [part.stat().st_size for part in parts(store)] == [3 * CHUNK]


def test_next_fetch_resumes_parts(store: SourceStore, source: FakeSource) -> None:
    source.before_chunk = fail_at(3 * CHUNK, SourceUnavailable("cut"), times=4)
    with pytest.raises(SourceUnavailable):
        store.fetch(ADDRESS, "pytorch")
    source.reads.clear()
    progress = Progress()
    fetched = store.fetch(ADDRESS, "pytorch", progress)
    assert source.reads == [("model.safetensors", 3 * CHUNK)]
    assert fetched.downloaded_bytes == len(WEIGHTS) - 3 * CHUNK
    assert progress.received_bytes == progress.total_bytes
    assert contents(fetched) == {"model.safetensors": WEIGHTS, "config.json": b"{}"}


def test_damaged_part_is_downloaded_again(store: SourceStore, source: FakeSource) -> None:
    source.before_chunk = fail_at(3 * CHUNK, SourceUnavailable("cut"), times=4)
    with pytest.raises(SourceUnavailable):
        store.fetch(ADDRESS, "pytorch")
    parts(store)[0].write_bytes(b"x" * 3 * CHUNK)
    assert contents(store.fetch(ADDRESS, "pytorch"))["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("sent", [OTHER, WEIGHTS[:-1] + b"x"])
def test_wrong_hash_twice_is_refused(store: SourceStore, source: FakeSource, sent: bytes) -> None:
    source.sent["model.safetensors"] = sent
    with pytest.raises(InvalidModel, match=r"model\.safetensors: expected the content that the source lists"):
        store.fetch(ADDRESS, "pytorch")
    assert source.reads.count(("model.safetensors", 0)) == 2
    assert not parts(store)
    assert not list(store.folder(ADDRESS).glob("versions/*"))


def test_git_hash_is_checked(tmp_path: Path) -> None:
    from frameworks.sources.contract import RemoteFile
    from frameworks.sources.download import _hashes, _update

    blob = hashlib.sha1(b"blob 2\0{}").hexdigest()
    ((found, expected),) = hashes = _hashes(RemoteFile("a", 2, "e", git_sha1=blob.upper()))
    _update(hashes, b"{}")
    assert found.hexdigest() == expected


@pytest.mark.parametrize("has_hashes", [True, False])
def test_more_bytes_than_listed_are_refused(store: SourceStore, source: FakeSource, has_hashes: bool) -> None:
    source.has_hashes = has_hashes
    source.sizes["model.safetensors"] = 2500
    with pytest.raises(SourceUnavailable, match="expected files that do not change"):
        store.fetch(ADDRESS, "pytorch")
    assert all(part.stat().st_size <= 2500 for part in parts(store))
    assert not list(store.folder(ADDRESS).glob("versions/*"))


def test_fewer_bytes_than_listed_are_refused(store: SourceStore, source: FakeSource) -> None:
    source.sizes["model.safetensors"] = len(WEIGHTS) + 1
    with pytest.raises(SourceUnavailable, match=f"expected {len(WEIGHTS) + 1} bytes, got {len(WEIGHTS)}"):
        store.fetch(ADDRESS, "pytorch")


def test_change_during_download_lists_again(store: SourceStore, source: FakeSource) -> None:
    def change(name: str, offset: int) -> None:
        if name == "model.safetensors" and offset == 2 * CHUNK and source.files[name] == WEIGHTS:
            source.files[name] = OTHER
            raise SourceChanged("another etag")

    source.has_hashes = False
    source.before_chunk = change
    assert contents(store.fetch(ADDRESS, "pytorch"))["model.safetensors"] == OTHER
    assert source.listings == 2
    assert not list(store.folder(ADDRESS).glob("partial/*"))


def test_endless_changes_end_fetch(store: SourceStore, source: FakeSource) -> None:
    source.before_chunk = fail_at(0, SourceChanged("another etag"), times=99)
    with pytest.raises(SourceUnavailable, match="got a change in 3 downloads"):
        store.fetch(ADDRESS, "pytorch")


def test_model_above_limit_is_refused(tmp_path: Path, source: FakeSource) -> None:
    store = SourceStore(tmp_path, len(WEIGHTS) + 1, source.open)
    with pytest.raises(InvalidModel, match=r"expected at most models\.max_download_bytes = .*, got "):
        store.fetch(ADDRESS, "pytorch")
    assert not source.reads
    assert not store.folder(ADDRESS).exists()


def test_full_disk_is_refused_before_download(
    store: SourceStore, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2))
    with pytest.raises(InvalidModel, match=rf"models\.cache_dir: .* free {len(WEIGHTS)} bytes"):
        store.fetch(ADDRESS, "pytorch")
    assert not source.reads


def test_full_disk_at_end_keeps_part(store: SourceStore, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        with pytest.raises(InvalidModel, match="no space left"):
            store.fetch(ADDRESS, "pytorch")
    source.reads.clear()
    store.fetch(ADDRESS, "pytorch")
    assert source.reads == [("model.safetensors", 0)]


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "no space left; free"), (errno.EDQUOT, "no space left"), (errno.EACCES, "make it writable")],
)
def test_write_error_keeps_parts(store: SourceStore, source: FakeSource, number: int, message: str) -> None:
    source.before_chunk = fail_at(3 * CHUNK, OSError(number, "failed"))
    with pytest.raises(InvalidModel, match=message):
        store.fetch(ADDRESS, "pytorch")
    assert [part.stat().st_size for part in parts(store)] == [3 * CHUNK]
    assert contents(store.fetch(ADDRESS, "pytorch"))["model.safetensors"] == WEIGHTS


def test_cancelled_fetch_keeps_parts(store: SourceStore, source: FakeSource) -> None:
    is_cancelled = threading.Event()

    def cancel(name: str, offset: int) -> None:
        if offset == 2 * CHUNK:
            is_cancelled.set()

    source.before_chunk = cancel
    with pytest.raises(Cancelled):
        store.fetch(ADDRESS, "pytorch", is_cancelled=is_cancelled)
    assert [part.stat().st_size for part in parts(store)] == [3 * CHUNK]
    assert source.closed == 1


def test_cancelled_fetch_lists_nothing(store: SourceStore, source: FakeSource) -> None:
    is_cancelled = threading.Event()
    is_cancelled.set()
    with pytest.raises(Cancelled):
        store.fetch(ADDRESS, "pytorch", is_cancelled=is_cancelled)
    assert not source.listings


def test_cancelled_retry_ends_at_once(tmp_path: Path, source: FakeSource) -> None:
    is_cancelled = threading.Event()

    def fail() -> None:
        is_cancelled.set()
        raise SourceUnavailable("busy", retry_after_s=1e9)

    source.on_list = fail
    with pytest.raises(Cancelled):
        SourceStore(tmp_path, MAX_BYTES, source.open).fetch(ADDRESS, None, is_cancelled=is_cancelled)
    assert source.listings == 1


def test_unreachable_source_serves_cached_version(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    source.on_list = raise_unavailable
    assert store.fetch(ADDRESS, "pytorch") == Fetched(first.folder, "pytorch", "a" * 40)
    assert source.listings == 1 + 2


def test_unreachable_source_without_cache_is_unavailable(store: SourceStore, source: FakeSource) -> None:
    store.fetch(ADDRESS, "pytorch")
    source.on_list = raise_unavailable
    for address, framework in (("hf://org/name", "onnx"), ("hf://org/name@v2", "pytorch"), ("hf://org/other", None)):
        with pytest.raises(SourceUnavailable, match="fetch it once with `roundhouse serve`"):
            store.fetch(parse_address(address), framework)  # type: ignore[arg-type]


def test_cut_download_serves_cached_version(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    source.files["model.safetensors"] = OTHER
    source.before_chunk = fail_at(CHUNK, SourceUnavailable("cut"), times=4)
    assert store.fetch(ADDRESS, "pytorch").folder == first.folder
    assert contents(store.fetch(ADDRESS, "pytorch"))["model.safetensors"] == OTHER


def raise_unavailable() -> None:
    raise SourceUnavailable("no route to host")


def test_cached_version_of_framework_serves_any(store: SourceStore, source: FakeSource) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    source.on_list = raise_unavailable
    assert store.fetch(ADDRESS, None).folder == first.folder


def test_cached_shards_download_nothing(store: SourceStore, source: FakeSource) -> None:
    source.files["model.safetensors.index.json"] = b'{"weight_map": {"a": "model-1.safetensors"}}'
    source.files["model-1.safetensors"] = source.files.pop("model.safetensors")
    assert not store.fetch(ADDRESS, "pytorch").is_cached
    assert store.fetch(ADDRESS, "pytorch").is_cached


def test_file_system_without_locks_is_refused(store: SourceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise NotImplementedError("flock")

    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    with pytest.raises(InvalidModel, match="expected a file system with locks"):
        store.fetch(ADDRESS, "pytorch")


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "wrong", "damage", "new content", "full disk", "cancel"]),
        st.integers(0, len(WEIGHTS) // CHUNK),
    ),
    max_size=12,
)


class FaultySource(FakeSource):
    """Break the chunks of the weights by a list of faults, each at the number of a chunk."""

    def __init__(self, faults: list[tuple[str, int]], root: Path, has_hashes: bool) -> None:
        super().__init__(has_hashes=has_hashes, before_chunk=self.break_chunk)
        self.faults = list(faults)
        self.root = root
        self.is_cancelled = threading.Event()

    def break_chunk(self, name: str, offset: int) -> None:
        self.sent.clear()  # a read keeps the content that it began with
        if not self.faults or name != "model.safetensors" or offset != self.faults[0][1] * CHUNK:
            return
        match self.faults.pop(0)[0]:
            case "cut":
                raise SourceUnavailable("cut")
            case "full disk":
                raise OSError(errno.ENOSPC, "full")
            case "new content":
                self.files[name] = self.files[name][1:] + b"n"
                raise SourceChanged("changed")
            case "cancel":
                self.is_cancelled.set()
            case "wrong" if self.has_hashes:
                self.sent[name] = self.files[name][::-1]
                raise SourceUnavailable("cut")
            case "damage" if self.has_hashes:
                for part in self.root.glob("sources/hf/*/partial/*/model.safetensors.part"):
                    with part.open("r+b") as opened:
                        opened.write(b"damage")
                self.is_cancelled.set()


@given(FAULTS, st.booleans())
def test_any_faults_publish_listed_content(faults: list[tuple[str, int]], has_hashes: bool) -> None:
    with TemporaryDirectory() as root:
        source = FaultySource(faults, Path(root), has_hashes)
        store = SourceStore(Path(root), MAX_BYTES, source.open, retry_delays_s=(0,))
        fetched = None
        # Each failed fetch has met a fault.
        for _ in range(len(faults) + 1):
            source.is_cancelled.clear()
            with suppress(SourceUnavailable, InvalidModel, Cancelled):
                fetched = store.fetch(ADDRESS, "pytorch", is_cancelled=source.is_cancelled)
                break
        assert fetched is not None
        assert contents(fetched) == {name: source.files[name] for name in ("model.safetensors", "config.json")}


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "ref"])
def test_damaged_version_is_downloaded_again(store: SourceStore, damage: str) -> None:
    folder = store.fetch(ADDRESS, "pytorch").folder
    match damage:
        case "truncate":
            (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])
        case "remove":
            (folder / "config.json").unlink()
        case "manifest":
            (folder / ".roundhouse.json").write_bytes(b'{"files": [{"name": 3, "size": []}]}')
        case "ref":
            (store.folder(ADDRESS) / "refs" / "@default-pytorch").write_bytes(b"\xff../../etc")
    again = store.fetch(ADDRESS, "pytorch")
    assert contents(again) == {name: CONTENTS[name] for name in ("model.safetensors", "config.json")}
    assert again.folder == folder


def test_left_over_files_are_not_published(store: SourceStore, source: FakeSource) -> None:
    source.before_chunk = fail_at(CHUNK, SourceUnavailable("cut"), times=4)
    with pytest.raises(SourceUnavailable):
        store.fetch(ADDRESS, "pytorch")
    (parts(store)[0].parent / "evil.py").write_bytes(b"code")
    assert "evil.py" not in contents(store.fetch(ADDRESS, "pytorch"))


def test_threads_download_once(store: SourceStore, source: FakeSource) -> None:
    both_listed = threading.Barrier(2)

    def wait() -> None:
        both_listed.wait(60)

    source.on_list = wait
    found: list[Fetched] = []
    threads = [threading.Thread(target=lambda: found.append(store.fetch(ADDRESS, "pytorch"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({each.folder for each in found}) == 1
    assert sorted(each.downloaded_bytes for each in found) == [0, len(WEIGHTS) + 2]
    assert source.reads.count(("model.safetensors", 0)) == 1


def test_waiting_fetch_is_cancelled(store: SourceStore, source: FakeSource) -> None:
    from filelock import FileLock

    store.folder(ADDRESS).mkdir(parents=True)
    is_cancelled = threading.Event()
    source.on_list = is_cancelled.set
    with FileLock(store.folder(ADDRESS) / "lock"), pytest.raises(Cancelled):
        store.fetch(ADDRESS, "pytorch", is_cancelled=is_cancelled)


def test_read_only_cache_serves_its_version(
    store: SourceStore, tmp_path: Path, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.fetch(ADDRESS, "pytorch")
    monkeypatch.setattr(Path, "mkdir", lambda *arguments, **options: pytest.fail("written"))
    monkeypatch.setattr(Path, "replace", lambda *arguments: pytest.fail("written"))
    assert store.fetch(ADDRESS, "pytorch").folder == first.folder


def test_cache_that_is_a_file_is_refused(tmp_path: Path, source: FakeSource) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"models\.cache_dir: expected a folder to write to, got Not a directory"):
        SourceStore(tmp_path / "file", MAX_BYTES, source.open).fetch(ADDRESS, "pytorch")
