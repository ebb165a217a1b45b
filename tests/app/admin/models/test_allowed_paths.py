"""Paths and addresses that a registration may name."""

from pathlib import Path

import pytest

from app.admin.models.allowed_paths import AllowedPaths
from app.auth.errors import Forbidden
from frameworks.core.addresses import SourceAddress, parse_address, parse_prefix


def folder_of(address: SourceAddress) -> Path:
    return Path("/cache") / address.repository


def allowed(*sources: str) -> AllowedPaths:
    return AllowedPaths(Path("/base"), (Path("/base/models"),), tuple(map(parse_prefix, sources)), folder_of)


@pytest.mark.parametrize(
    ("source", "address", "is_allowed"),
    [
        ("hf://", "hf://org/name", True),
        ("hf://org", "hf://org/name@v2", True),
        ("hf://org", "hf://organization/name", False),
        ("hf://org/name@v1", "hf://org/name@v1/onnx", True),
        ("hf://org/name@v1", "hf://org/name", False),
        ("s3://bucket/team", "s3://bucket/team/model", True),
        ("s3://bucket/team", "s3://bucket/teams/model", False),
        ("https://host", "https://host/m.onnx", True),
        ("https://host", "https://host:8443/m.onnx", False),
        ("https://host", "s3://host/m.onnx", False),
    ],
)
def test_address_must_be_within_sources(source: str, address: str, is_allowed: bool) -> None:
    parsed = parse_address(address)
    if is_allowed:
        assert allowed("gs://other", source).check(parsed) == folder_of(parsed)
    else:
        with pytest.raises(Forbidden, match=r"path: expected an address within models\.sources, got"):
            allowed("gs://other", source).check(parsed)


def test_no_address_is_allowed_by_default() -> None:
    with pytest.raises(Forbidden, match=r'got "hf://org/name"'):
        allowed().check(SourceAddress("hf", "org/name"))


def test_sources_allow_no_local_path() -> None:
    with pytest.raises(Forbidden, match=r"models\.roots"):
        allowed("hf://", "https://").check(Path("../secret"))
    assert allowed().check(Path("models/m")) == Path("/base/models/m")
