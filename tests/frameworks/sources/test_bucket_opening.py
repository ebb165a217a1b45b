"""Open buckets by the scheme of their address, with and without the packages."""

import subprocess
import sys

import pytest

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel
from frameworks.sources.buckets import opening


@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs"), ("az", "adlfs", "azure")]
)
def test_missing_package_is_refused_with_extra(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    address = parse_address(f"{scheme}://bucket/m")
    with pytest.raises(InvalidModel) as caught:
        opening.open_bucket(address)
    expected = f"{scheme}://bucket/m: expected the package {package}, got none; make install EXTRAS={extra}"
    assert caught.value.message == expected
    assert opening.missing_extra(address) == extra


def test_installed_package_needs_no_extra() -> None:
    assert opening.missing_extra(parse_address("s3://bucket/m")) is None
    assert opening.missing_extra(parse_address("https://host/m")) is None


def test_remote_is_opened_without_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    opening.open_bucket(parse_address("s3://bucket/m")).close()


def test_import_of_sources_loads_no_package() -> None:
    modules = ("opening", "remote", "s3", "gcs", "azure")
    imports = "; ".join(f"import frameworks.sources.buckets.{each}" for each in modules)
    packages = {"fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiohttp", "azure.core", "google.auth"}
    code = f"import sys; {imports}; print(sorted({packages} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
