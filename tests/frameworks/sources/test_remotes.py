"""Test which remote an address opens, and the message for a missing package."""

import pytest

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel
from frameworks.sources import remotes
from frameworks.sources.buckets import opening
from frameworks.sources.buckets.remote import BucketRemote
from frameworks.sources.hub import HubRemote
from frameworks.sources.web import WebRemote


@pytest.mark.parametrize(
    ("address", "kind"),
    [("hf://org/name", HubRemote), ("https://host/a", WebRemote), ("s3://bucket/a", BucketRemote)],
)
def test_address_opens_its_remote(address: str, kind: type) -> None:
    remote = remotes.open_remote(parse_address(address))
    assert isinstance(remote, kind)
    remote.close()


@pytest.mark.parametrize(
    ("address", "extra"),
    [("hf://org/name", "hub"), ("s3://b/a", "s3"), ("gs://b/a", "gcs"), ("az://b/a", "azure"), ("https://h/a", None)],
)
def test_missing_package_names_its_extra(address: str, extra: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (remotes, opening):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    parsed = parse_address(address)
    assert remotes.missing_package(parsed) == extra
    if extra is not None:
        with pytest.raises(InvalidModel, match=f"make install EXTRAS={extra}"):
            remotes.open_remote(parsed)
