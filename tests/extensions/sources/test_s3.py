"""Read buckets of a server of the S3 API on loopback."""

import gc
import logging
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from app.extension import open_remote
from extensions.sources.bucket_remote import BucketRemote
from extensions.sources.s3 import S3Bucket
from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, RemoteFile, SourceChanged
from tests.support.s3_server import S3Server, running_s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a bucket without files."""
    server.set_environment(monkeypatch)
    name = f"models-{uuid4().hex[:8]}"
    server.make_bucket(name, {})
    return name


def names(address: str) -> list[str]:
    return sorted(file.name for file in files(address))


def files(address: str) -> tuple[RemoteFile, ...]:
    remote = opened(address)
    try:
        return remote.list_files().files
    finally:
        remote.close()


def opened(address: str) -> BucketRemote:
    return BucketRemote(parse_address(address), S3Bucket)


def test_listing_of_folder_includes_module_folders(server: S3Server, bucket: str) -> None:
    paths = ["a/modules.json", "a/1_Pooling/config.json", "a/onnx/model.onnx", "a/logs/x", "b/y", "a/1_Pooling/z/x"]
    for path in paths:
        server.client.put_object(Bucket=bucket, Key=path, Body=b"{}")
    assert names(f"s3://{bucket}/a") == ["a/1_Pooling/config.json", "a/modules.json", "a/onnx/model.onnx"]


def test_listing_of_bucket_names_top_files(server: S3Server, bucket: str) -> None:
    server.client.put_object(Bucket=bucket, Key="folder/", Body=b"")
    server.client.put_object(Bucket=bucket, Key="config.json", Body=b"{}")
    (file,) = files(f"s3://{bucket}")
    assert (file.name, file.size) == ("config.json", 2)
    assert re.fullmatch("[0-9a-f]{32}", file.etag)


def test_listing_of_graph_includes_folder_above(server: S3Server, bucket: str) -> None:
    for path in ("m/tokenizer.json", "m/onnx/model.onnx", "m/onnx/model.onnx_data", "m/other/x", "top"):
        server.client.put_object(Bucket=bucket, Key=path, Body=b"12")
    expected = ["m/onnx/model.onnx", "m/onnx/model.onnx_data", "m/tokenizer.json"]
    assert names(f"s3://{bucket}/m/onnx/model.onnx") == expected


def test_listing_of_missing_graph_is_refused(server: S3Server, bucket: str) -> None:
    server.client.put_object(Bucket=bucket, Key="m/a.onnx", Body=b"12")
    with pytest.raises(InvalidModel, match=r"b\.onnx: expected an \.onnx file in the bucket, got none"):
        names(f"s3://{bucket}/m/b.onnx")


def test_listing_without_files_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidModel, match="got no files"):
        names(f"s3://{bucket}/nothing")


def test_listing_of_missing_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidModel, match="expected a bucket that exists, got HTTP 404; check its name"):
        names("s3://there-is-no-such-bucket/m")


def test_listing_of_invalid_bucket_name_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidModel, match="got ParamValidationError; set"):
        names("s3://a:b/m")


def test_unknown_profile_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(InvalidModel, match="got ProfileNotFound; set AWS_ACCESS_KEY_ID"):
        names(f"s3://{bucket}/m")


def test_requests_without_credentials_are_anonymous(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client.put_object(Bucket=bucket, Key="config.json", Body=b"{}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert names(f"s3://{bucket}") == ["config.json"]


def test_read_from_offset_yields_bounded_chunks(server: S3Server, bucket: str) -> None:
    content = bytes(range(256)) * (CHUNK_BYTES // 64)
    server.client.put_object(Bucket=bucket, Key="w", Body=content)
    remote = opened(f"s3://{bucket}")
    (file,) = remote.list_files().files
    chunks = list(remote.read(file, 1000))
    assert b"".join(chunks) == content[1000:]
    assert max(map(len, chunks)) == CHUNK_BYTES
    assert list(remote.read(file, len(content))) == []
    remote.close()


def test_read_of_changed_file_raises_source_changed(server: S3Server, bucket: str) -> None:
    server.client.put_object(Bucket=bucket, Key="w", Body=b"a" * 3 * CHUNK_BYTES)
    remote = opened(f"s3://{bucket}")
    (file,) = remote.list_files().files
    chunks = remote.read(file, 0)
    assert next(chunks) == b"a" * CHUNK_BYTES
    server.client.put_object(Bucket=bucket, Key="w", Body=b"b" * 3 * CHUNK_BYTES)
    with pytest.raises(SourceChanged):
        next(chunks)
    remote.close()


@pytest.mark.parametrize("change", ["delete", "shorten"])
def test_read_of_lost_bytes_raises_source_changed(server: S3Server, bucket: str, change: str) -> None:
    server.client.put_object(Bucket=bucket, Key="w", Body=b"a" * 3 * CHUNK_BYTES)
    remote = opened(f"s3://{bucket}")
    (file,) = remote.list_files().files
    chunks = remote.read(file, 0)
    next(chunks)
    server.client.delete_object(Bucket=bucket, Key="w")
    if change == "shorten":
        server.client.put_object(Bucket=bucket, Key="w", Body=b"a")
    with pytest.raises(SourceChanged):
        next(chunks)
    remote.close()


def test_unreachable_server_raises_source_unavailable(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(SourceUnavailable, match="got EndpointConnectionError; load the model again"):
        names(f"s3://{bucket}/m")


def test_messages_hold_no_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "bad\nsecret-in-the-environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDBAD\n")
    with pytest.raises((InvalidModel, SourceUnavailable)) as caught:
        names(f"s3://{bucket}/m")
    assert "AKID" not in str(caught.value)
    assert "secret-in" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_debug_log_holds_no_token(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aiobotocore", "botocore", "s3fs"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-session")
    server.client.put_object(Bucket=bucket, Key="config.json", Body=b"{}")
    remote = open_remote(parse_address(f"s3://{bucket}"))
    assert len(remote.list_files().files) == 1
    remote.close()
    assert "GET /" in caplog.text  # the server's own lines
    assert "token-of-the-session" not in caplog.text


def test_remote_leaves_no_connection_open(server: S3Server, bucket: str, recwarn: pytest.WarningsRecorder) -> None:
    server.client.put_object(Bucket=bucket, Key="config.json", Body=b"{}")
    names(f"s3://{bucket}")
    gc.collect()
    assert [str(each.message) for each in recwarn.list] == []
