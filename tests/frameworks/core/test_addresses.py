"""Test the addresses of models in hubs, buckets and web servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.addresses import SCHEMES, SourceAddress, is_address, parse_address, parse_prefix

ADDRESSES = {
    "hf://org/name": SourceAddress("hf", "org/name"),
    "hf://org/name@v1.0": SourceAddress("hf", "org/name", "", "v1.0"),
    "hf://org/name@abc/onnx/model.onnx": SourceAddress("hf", "org/name", "onnx/model.onnx", "abc"),
    "s3://bucket": SourceAddress("s3", "bucket"),
    "S3://Bucket/a/b/": SourceAddress("s3", "Bucket", "a/b"),
    "gs://bucket/a@b": SourceAddress("gs", "bucket", "a@b"),
    "az://container/model.onnx": SourceAddress("az", "container", "model.onnx"),
    "https://Models.example.org:8443/a/model.onnx": SourceAddress("https", "models.example.org:8443", "a/model.onnx"),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_address_is_parsed(text: str) -> None:
    assert is_address(text)
    assert parse_address(text) == ADDRESSES[text]


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=str)
def test_written_address_parses_to_itself(address: SourceAddress) -> None:
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/model", "hf://org", "hf://org/name@", "hf://org/name@a/../b", "hf://org/na me", "hf://../name",
        "s3://", "s3://bucket//a", "s3://bucket/../other", "s3://bucket/./a", "s3://bucket/a?versionId=1",
        "s3://key:secret@bucket/a", "https://host", "https://user:word@host/a", "https://host/%2e%2e/a", "https://host/a#b",
        "s3://bucket/a\\b", "s3://bucket/\0", "s3://" + "a" * 3000,
    ],
)  # fmt: skip
def test_address_with_error_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        parse_address(text)


@pytest.mark.parametrize("text", ["./models/a", "models", "C:\\models", "/models", "org/name"])
def test_path_is_no_address(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("hf://org/name@v1", "name"), ("hf://org/name/onnx/model.onnx", "onnx"),
        ("s3://bucket/a/digits.onnx", "digits"),
        ("s3://bucket", "bucket"), ("https://host/model.onnx", "host"),
    ],
)  # fmt: skip
def test_name_is_last_part(address: str, name: str) -> None:
    assert parse_address(address).name == name


@pytest.mark.parametrize(
    ("prefix", "address", "allowed"),
    [
        ("hf://", "hf://org/name", True), ("hf://", "s3://bucket", False), ("hf://org", "hf://org/name@v1", True),
        ("hf://org", "hf://organization/name", False), ("hf://org/name", "hf://org/name2", False),
        ("hf://org/name@v1", "hf://org/name@v1", True), ("hf://org/name@v1", "hf://org/name", False),
        ("hf://org/name@v1", "hf://org/name@v2", False), ("s3://bucket/a/", "s3://bucket/a/b", True),
        ("s3://bucket/a", "s3://bucket/ab", False), ("s3://bucket/a", "s3://Bucket/a", False),
        ("https://host", "https://host/a", True), ("https://host", "https://host:8443/a", False),
    ],
)  # fmt: skip
def test_prefix_allows_whole_parts_only(prefix: str, address: str, allowed: bool) -> None:
    assert parse_address(address).is_within(parse_prefix(prefix)) is allowed


@given(st.sampled_from(SCHEMES), st.text(max_size=40))
def test_parsed_address_never_leaves_its_repository(scheme: str, rest: str) -> None:
    try:
        address = parse_address(f"{scheme}://{rest}")
    except ValueError:
        return
    parts = address.path.split("/")
    assert ".." not in parts
    assert not address.path.startswith("/")
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("address", "commit"),
    [
        (f"hf://org/name@{'a1' * 20}/onnx", "a1" * 20),
        (f"hf://org/name@{'a1' * 19}", None),
        (f"hf://org/name@{'A1' * 20}", None),
        ("hf://org/name", None),
        (f"s3://bucket/{'a1' * 20}", None),
    ],
)
def test_commit_is_revision_of_40_digits(address: str, commit: str | None) -> None:
    assert parse_address(address).commit == commit
