"""Test which remote an address opens, and the messages for a missing package and an unknown scheme."""

from typing import Any

import pytest

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel
from frameworks.sources import remotes
from frameworks.sources.hub import HubRemote
from tests.frameworks.sources.fake_remote import FakeSource


def test_hub_is_opened_by_core() -> None:
    assert isinstance(remotes.open_remote(parse_address("hf://org/name")), HubRemote)


def test_added_scheme_opens_its_remote() -> None:
    added: Any = {"https": FakeSource().open}
    assert remotes.open_remote(parse_address("https://host/a"), added).list_files().files


def test_scheme_without_extension_is_refused() -> None:
    with pytest.raises(InvalidModel) as caught:
        remotes.open_remote(parse_address("https://host/a"))
    assert caught.value.message == (
        "https://host/a: expected hf://, got https://; install the extension for this scheme"
    )


@pytest.mark.parametrize(
    ("address", "extra"),
    [("hf://org/name", "hub"), ("s3://b/a", "s3"), ("gs://b/a", "gcs"), ("az://b/a", "azure"), ("https://h/a", None)],
)
def test_missing_package_names_its_extra(address: str, extra: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "find_spec", lambda name: None)
    parsed = parse_address(address)
    assert remotes.missing_package(parsed) == extra
    if extra is not None:
        with pytest.raises(InvalidModel, match=f"make install EXTRAS={extra}"):
            remotes.open_remote(parsed)


def test_installed_package_needs_no_extra() -> None:
    assert remotes.missing_package(parse_address("s3://bucket/m")) is None
