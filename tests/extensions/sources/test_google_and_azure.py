"""Read buckets of Google Cloud Storage and Azure Blob Storage from servers on loopback."""

import gc
from collections.abc import Callable, Iterator

import pytest

from extensions.sources.azure import AzureContainer
from extensions.sources.bucket_remote import Bucket, BucketRemote
from extensions.sources.gcs import GoogleBucket
from frameworks.core.addresses import SourceAddress, parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, SourceChanged
from tests.support.bucket_servers import BucketServer, running_azure, running_google

KEY = "c2VjcmV0LWtleQ=="


@pytest.fixture(params=["gs", "az"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    pytest.importorskip("gcsfs" if request.param == "gs" else "adlfs")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with (running_google if request.param == "gs" else running_azure)() as server:
        if request.param == "gs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            monkeypatch.setenv("NO_GCE_CHECK", "true")
            monkeypatch.setenv("HOME", "/dev/null")
        else:
            settings = f"AccountName=account;AccountKey={KEY};BlobEndpoint={server.url}/account"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", settings)
        yield server


@pytest.fixture
def open_remote(server: BucketServer, request: pytest.FixtureRequest) -> Iterator[Callable[[str], BucketRemote]]:
    scheme = request.node.callspec.params["server"]
    open_bucket: Callable[[SourceAddress], Bucket] = GoogleBucket if scheme == "gs" else AzureContainer
    opened: list[BucketRemote] = []

    def open_one(path: str) -> BucketRemote:
        opened.append(BucketRemote(parse_address(f"{scheme}://{path}"), open_bucket))
        return opened[-1]

    yield open_one
    for remote in opened:
        remote.close()


Opener = Callable[[str], BucketRemote]


def test_listing_has_sizes_and_etags(server: BucketServer, open_remote: Opener) -> None:
    for name in ("m/modules.json", "m/1_Pooling/config.json", "m/logs/x", "other"):
        server.put(name, b"{}")
    files = open_remote("bucket/m").list_files().files
    assert sorted(file.name for file in files) == ["m/1_Pooling/config.json", "m/modules.json"]
    assert {file.size for file in files} == {2}
    assert len({file.etag for file in files}) == 2
    assert not any('"' in file.etag for file in files)


def test_listing_follows_pages(server: BucketServer, open_remote: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gcs", "azure"):
        monkeypatch.setattr(f"extensions.sources.{module}.MAX_NAMES", 2)
    for number in range(5):
        server.put(f"{number}", b"{}")
    assert len(open_remote("bucket").list_files().files) == 5


def test_read_returns_bytes_from_offset(server: BucketServer, open_remote: Opener) -> None:
    content = bytes(range(251)) * (CHUNK_BYTES // 100)
    server.put("m/a b&c.safetensors", content)
    remote = open_remote("bucket/m")
    (file,) = remote.list_files().files
    chunks = list(remote.read(file, 7))
    assert b"".join(chunks) == content[7:]
    assert max(map(len, chunks)) <= CHUNK_BYTES


@pytest.mark.parametrize("change", ["replace", "delete"])
def test_read_of_changed_file_raises_source_changed(server: BucketServer, open_remote: Opener, change: str) -> None:
    server.put("m/w", b"a" * 3 * CHUNK_BYTES)
    remote = open_remote("bucket/m")
    (file,) = remote.list_files().files
    chunks = remote.read(file, 0)
    assert next(chunks) == b"a" * CHUNK_BYTES
    del server.files["m/w"]
    if change == "replace":
        server.put("m/w", b"b" * 3 * CHUNK_BYTES)
    with pytest.raises(SourceChanged):
        next(chunks)


def test_proxy_of_environment_is_used(
    server: BucketServer, open_remote: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("m/config.json", b"{}")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://storage.invalid")
    settings = f"AccountName=account;AccountKey={KEY};BlobEndpoint=http://storage.invalid/account"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", settings)
    assert len(open_remote("bucket/m").list_files().files) == 1


def test_missing_bucket_is_refused(open_remote: Opener) -> None:
    with pytest.raises(InvalidModel, match="expected a bucket that exists, got HTTP 404; check its name"):
        open_remote("nowhere/m").list_files()


def test_forbidden_bucket_is_refused(server: BucketServer, open_remote: Opener) -> None:
    server.status = 403
    with pytest.raises(InvalidModel, match=r"got HTTP 403; set (GOOGLE|AZURE)_") as caught:
        open_remote("bucket/m").list_files()
    assert "c2Vj" not in str(caught.value)


@pytest.mark.parametrize("server", ["az"], indirect=True)
def test_failing_server_raises_source_unavailable(server: BucketServer, open_remote: Opener) -> None:
    server.status = 503
    with pytest.raises(SourceUnavailable, match="got HTTP 503"):
        open_remote("bucket/m").list_files()
    assert server.requests == 1


@pytest.mark.parametrize("server", ["az"], indirect=True)
def test_unreachable_server_raises_source_unavailable(
    server: BucketServer, open_remote: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = f"AccountName=account;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:1/account"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", settings)
    with pytest.raises(SourceUnavailable, match="got ServiceRequestError"):
        open_remote("bucket/m").list_files()


@pytest.mark.parametrize("server", ["az"], indirect=True)
def test_azure_without_account_is_refused(open_remote: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    with pytest.raises(InvalidModel, match="expected AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"):
        open_remote("bucket/m").list_files()


@pytest.mark.parametrize("server", ["az"], indirect=True)
def test_invalid_connection_string_is_not_shown(open_remote: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountKey={KEY}")
    with pytest.raises(InvalidModel, match="expected valid settings in the environment") as caught:
        open_remote("bucket/m").list_files()
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("server", ["gs"], indirect=True)
def test_google_with_missing_key_file_is_refused(open_remote: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(InvalidModel, match="got DefaultCredentialsError"):
        open_remote("bucket/m").list_files()


def test_closed_remote_leaves_no_warning(
    server: BucketServer, open_remote: Opener, recwarn: pytest.WarningsRecorder
) -> None:
    server.put("m/config.json", b"{}")
    remote = open_remote("bucket/m")
    remote.list_files()
    remote.close()
    del remote
    gc.collect()
    assert [str(each.message) for each in recwarn.list if each.category is ResourceWarning] == []
