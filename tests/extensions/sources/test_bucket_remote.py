"""Read a bucket that is in memory, slow, broken or too large."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from extensions.sources.bucket_remote import MAX_NAMES, BucketRemote, Cause, Page
from frameworks.core.addresses import SourceAddress, parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, RemoteFile, SourceChanged

KIB_64 = 1 << 16


class Answered(Exception):
    """An answer with an HTTP status; None: no answer."""

    def __init__(self, status: int | None, cause: Cause = "network") -> None:
        super().__init__("a text with a secret")
        self.status = status
        self.cause = cause


@dataclass
class MemoryBucket:
    """A bucket in memory. `failures` are raised by the next requests. `bytes_per_s`: None for an infinite speed."""

    files: dict[str, int] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    page_size: int = MAX_NAMES
    max_range: int | None = None
    """A larger range gets no answer before the timeout."""
    ranges: list[int] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    is_truncating: bool = False
    is_closed: bool = False
    remedy: str = "set the key"

    async def list_page(self, prefix: str, token: str | None) -> Page:
        self.listed.append(prefix)
        self._fail()
        below = sorted(name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
        names = list(dict.fromkeys(name.partition("/")[0] + ("/" if "/" in name else "") for name in below))
        start = int(token or 0)
        page = names[start : start + self.page_size]
        files = [self.file(prefix + name) for name in page if not name.endswith("/")]
        folders = [prefix + name[:-1] for name in page if name.endswith("/")]
        stop = start + self.page_size
        return Page(tuple(files), tuple(folders), str(stop) if stop < len(names) else None)

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        self.ranges.append(stop - start)
        self._fail()
        if self.max_range is not None and stop - start > self.max_range:
            await asyncio.sleep(60)
        return bytes(stop - start - self.is_truncating)

    async def close(self) -> None:
        self.is_closed = True

    def cause(self, error: Exception) -> int | Cause:
        return (error.status or error.cause) if isinstance(error, Answered) else "network"

    def file(self, name: str) -> RemoteFile:
        return RemoteFile(name, self.files[name], "etag")

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def opened(bucket: MemoryBucket, address: str = "s3://bucket/m", timeout_s: float = 60) -> BucketRemote:
    return BucketRemote(parse_address(address), lambda _: bucket, timeout_s)


def names(bucket: MemoryBucket, address: str = "s3://bucket/m") -> list[str]:
    return [file.name for file in opened(bucket, address).list_files().files]


def test_listing_follows_short_pages() -> None:
    bucket = MemoryBucket({f"m/{number}": 1 for number in range(7)}, page_size=2)
    assert len(names(bucket)) == 7
    assert len(bucket.listed) == 4


def test_listing_of_large_folder_is_refused() -> None:
    bucket = MemoryBucket({f"m/{number}": 1 for number in range(MAX_NAMES + 1)})
    with pytest.raises(InvalidModel, match='at most 1000 names, got more in "m"; give the model a folder of its own'):
        names(bucket)


def test_listing_of_many_pages_is_refused() -> None:
    bucket = MemoryBucket({f"m/{number}": 1 for number in range(30)}, page_size=1)
    with pytest.raises(InvalidModel, match="got more"):
        names(bucket)
    assert len(bucket.listed) == 20


def test_listing_of_graph_skips_large_folder_above() -> None:
    files = {f"{number}/x": 1 for number in range(MAX_NAMES + 1)} | {"m/model.onnx": 1}
    assert names(MemoryBucket(files), "s3://bucket/m/model.onnx") == ["m/model.onnx"]


def test_listing_of_graph_at_top_lists_once() -> None:
    bucket = MemoryBucket({"model.onnx": 1, "tokenizer.json": 1})
    assert names(bucket, "s3://bucket/model.onnx") == ["model.onnx", "tokenizer.json"]
    assert bucket.listed == [""]


def test_listing_visits_bounded_number_of_folders() -> None:
    bucket = MemoryBucket({f"m/{number}_Dense/config.json": 1 for number in range(40)} | {"m/modules.json": 1})
    assert len(names(bucket)) == 1 + 16


def test_listing_without_modules_skips_their_folders() -> None:
    assert names(MemoryBucket({"m/1_Dense/config.json": 1, "m/config.json": 1})) == ["m/config.json"]


def test_listing_of_graph_includes_modules_above() -> None:
    bucket = MemoryBucket({"m/onnx/model.onnx": 1, "m/modules.json": 1, "m/1_Pooling/config.json": 1})
    expected = ["m/onnx/model.onnx", "m/modules.json", "m/1_Pooling/config.json"]
    assert names(bucket, "s3://bucket/m/onnx/model.onnx") == expected


def test_ranges_grow_with_speed_of_source() -> None:
    bucket = MemoryBucket()
    content = b"".join(opened(bucket).read(RemoteFile("w", 40 * CHUNK_BYTES, "etag"), 0))
    assert len(content) == 40 * CHUNK_BYTES
    assert max(bucket.ranges) == 8 * CHUNK_BYTES
    assert bucket.ranges[:4] == [CHUNK_BYTES, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES, 8 * CHUNK_BYTES]


def test_range_shrinks_after_timeout() -> None:
    bucket = MemoryBucket(max_range=KIB_64)
    chunks = opened(bucket, timeout_s=0.5).read(RemoteFile("w", CHUNK_BYTES, "etag"), 0)
    assert len(next(chunks)) == KIB_64
    assert bucket.ranges == [CHUNK_BYTES, KIB_64]


def test_source_without_bytes_raises_source_unavailable() -> None:
    bucket = MemoryBucket(max_range=0)
    with pytest.raises(SourceUnavailable, match="got less than 65536 bytes in a minute"):
        next(opened(bucket, timeout_s=0.2).read(RemoteFile("w", CHUNK_BYTES, "etag"), 0))
    assert bucket.ranges == [CHUNK_BYTES, KIB_64]


def test_short_answer_raises_source_unavailable() -> None:
    bucket = MemoryBucket(is_truncating=True)
    with pytest.raises(SourceUnavailable, match="got 9 bytes of 10"):
        next(opened(bucket).read(RemoteFile("w", 10, "etag"), 0))


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_transient_failure_raises_source_unavailable(status: int) -> None:
    bucket = MemoryBucket({"m/x": 1}, [Answered(status)])
    with pytest.raises(SourceUnavailable, match=f"got HTTP {status}; load the model again") as caught:
        names(bucket)
    assert "secret" not in str(caught.value)


def test_connection_error_raises_source_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="got Answered; load the model again"):
        names(MemoryBucket({"m/x": 1}, [Answered(None)]))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (Answered(403), "got HTTP 403; set the key"),
        (Answered(301), "got HTTP 301; set the key"),
        (Answered(404), "got HTTP 404; check its name"),
        (Answered(None, "settings"), "expected valid settings, got Answered; set the key"),
    ],
)
def test_refusal_is_final(failure: Exception, message: str) -> None:
    with pytest.raises(InvalidModel, match=message) as caught:
        names(MemoryBucket({"m/x": 1}, [failure]))
    assert "secret" not in str(caught.value)


def test_missing_credentials_raise_source_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="expected valid credentials, got Answered; set the key"):
        names(MemoryBucket({"m/x": 1}, [Answered(None, "credentials")]))


@pytest.mark.parametrize("status", [404, 412, 416])
def test_read_of_lost_content_raises_source_changed(status: int) -> None:
    bucket = MemoryBucket(failures=[Answered(status)])
    with pytest.raises(SourceChanged):
        next(opened(bucket).read(RemoteFile("w", 10, "etag"), 0))


def failing(error: Exception) -> Callable[[SourceAddress], MemoryBucket]:
    def fail(_: SourceAddress) -> MemoryBucket:
        raise error

    return fail


@pytest.mark.parametrize("error", [ValueError("a secret"), OSError("a secret"), KeyError("a secret")])
def test_invalid_settings_are_refused_without_text(error: Exception) -> None:
    remote = BucketRemote(parse_address("s3://bucket/m"), failing(error))
    with pytest.raises(InvalidModel, match=f"got {type(error).__name__}; correct them") as caught:
        remote.list_files()
    assert "secret" not in str(caught.value)
    remote.close()


def test_unreachable_service_of_credentials_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="got ConnectionError; load the model again"):
        BucketRemote(parse_address("s3://bucket/m"), failing(ConnectionError())).list_files()


def test_closed_remote_closes_bucket() -> None:
    bucket = MemoryBucket({"m/x": 1})
    remote = opened(bucket)
    remote.list_files()
    remote.close()
    assert bucket.is_closed
