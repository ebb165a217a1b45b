"""Fetch models from buckets and web servers: the schemes `s3`, `gs`, `az` and `https` of addresses.

A remote lists the files of an address and reads their bytes (frameworks/sources/contract.py); the store of the core
downloads, checks and keeps them. `bucket_remote.py` reads any bucket by the requests of `s3.py`, `gcs.py` or
`azure.py`; `web.py` reads web servers. Manual: docs/sources.md.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from app.extension import Extension

if TYPE_CHECKING:
    from frameworks.core.addresses import Scheme, SourceAddress
    from frameworks.sources.contract import OpenRemote, Remote

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


def _open_bucket(address: "SourceAddress") -> "Remote":
    from extensions.sources.bucket_remote import BucketRemote

    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    if address.scheme == "s3":
        from extensions.sources.s3 import S3Bucket

        return BucketRemote(address, S3Bucket)
    if address.scheme == "gs":
        from extensions.sources.gcs import GoogleBucket

        return BucketRemote(address, GoogleBucket)
    from extensions.sources.azure import AzureContainer

    return BucketRemote(address, AzureContainer)


def _open_web(address: "SourceAddress") -> "Remote":
    from extensions.sources.web import WebRemote

    return WebRemote(address)


def _sources() -> "Mapping[Scheme, OpenRemote]":
    return {"s3": _open_bucket, "gs": _open_bucket, "az": _open_bucket, "https": _open_web}


EXTENSION = Extension(sources=_sources)
