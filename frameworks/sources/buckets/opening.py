"""Open the bucket of an address with the package of its scheme."""

import logging
from importlib.util import find_spec
from typing import Final

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.core.extras import install_command
from frameworks.sources.buckets.remote import BucketRemote

_PACKAGES: Final = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}
"""For each scheme of a bucket: its package, and the extra of this project that brings it."""
_LOGGERS: Final = {
    "aiobotocore": logging.WARNING,
    "botocore": logging.WARNING,
    "s3fs": logging.WARNING,
    "google": logging.WARNING,
    "gcsfs": logging.CRITICAL,  # a traceback for each failed request; the error of the load says the same
    "adlfs": logging.WARNING,
    "azure": logging.WARNING,
}
"""Minimum levels of the packages' lines. Their debug lines hold the headers of requests, and so session tokens."""


def missing_extra(address: SourceAddress) -> str | None:
    """Return the extra of this project that a bucket needs and that is not installed."""
    package, extra = _PACKAGES.get(address.scheme, ("", None))
    return extra if package and find_spec(package) is None else None


def open_bucket(address: SourceAddress) -> BucketRemote:
    """Return the remote of an address in a bucket.

    Raises InvalidModel where the package is missing. No request is sent, and the environment is not read yet.
    """
    _quieten_packages()
    extra = missing_extra(address)
    if extra is not None:
        raise InvalidModel(
            f"{address}: expected the package {_PACKAGES[address.scheme][0]}, got none; {install_command(extra)}"
        )
    if address.scheme == "s3":
        from frameworks.sources.buckets.s3 import S3Bucket

        return BucketRemote(address, S3Bucket)
    if address.scheme == "gs":
        from frameworks.sources.buckets.gcs import GoogleBucket

        return BucketRemote(address, GoogleBucket)
    assert address.scheme == "az", address
    from frameworks.sources.buckets.azure import AzureContainer

    return BucketRemote(address, AzureContainer)


def _quieten_packages() -> None:
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
