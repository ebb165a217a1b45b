"""Open the source of an address by its scheme, with and without the packages."""

import subprocess
import sys

import pytest

from app.extension import open_remote
from extensions.sources.bucket_remote import BucketRemote
from extensions.sources.web import WebRemote
from frameworks.core.addresses import parse_address
from frameworks.sources.hub import HubRemote


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("hf://org/name", HubRemote),
        ("https://host/a", WebRemote),
        ("s3://bucket/a", BucketRemote),
        ("gs://bucket/a", BucketRemote),
        ("az://bucket/a", BucketRemote),
    ],
)
def test_address_opens_its_remote(address: str, kind: type) -> None:
    remote = open_remote(parse_address(address))
    assert isinstance(remote, kind)
    remote.close()


def test_remote_is_opened_without_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    open_remote(parse_address("s3://bucket/m")).close()


def test_import_of_sources_loads_no_package() -> None:
    modules = ("bucket_remote", "s3", "gcs", "azure", "web")
    imports = "; ".join(f"import extensions.sources.{each}" for each in modules)
    packages = {"fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiohttp", "azure.core", "google.auth"}
    code = f"import sys; {imports}; print(sorted({packages} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
