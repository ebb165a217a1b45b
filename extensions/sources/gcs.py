"""Read a bucket of Google Cloud Storage with gcsfs."""

import os
from typing import Any

from extensions.sources.bucket_remote import CONNECT_TIMEOUT_S, MAX_NAMES, Cause, Entry, Page
from frameworks.core.addresses import SourceAddress
from frameworks.sources.contract import RemoteFile, SourceChanged


class GoogleBucket:
    """A bucket of Google Cloud Storage.

    Credentials are the application default credentials. Without them the requests are anonymous, as public buckets
    allow. The etag of a file is the generation of its object: a number that each write changes.
    """

    remedy = "set GOOGLE_APPLICATION_CREDENTIALS in the environment to a file of credentials"

    def __init__(self, address: SourceAddress) -> None:
        self._bucket = address.repository
        self._system = _connect()

    async def list_page(self, prefix: str, token: str | None) -> Page:
        """Return names directly below a prefix."""
        query = {"prefix": prefix or None, "delimiter": "/", "maxResults": MAX_NAMES, "pageToken": token}
        page = await self._system._call("GET", "b/{}/o", self._bucket, json_out=True, **query)
        files = tuple(file_of(entry) for entry in page.get("items", []) if not entry["name"].endswith("/"))
        folders = tuple(each.rstrip("/") for each in page.get("prefixes", []))
        return Page(files, folders, page.get("nextPageToken") or None)

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of bytes of the file's generation; another one is an answer with status 404."""
        url = f"{self._system.url(f'{self._bucket}/{file.name}')}&generation={file.etag}"
        headers, content = await self._system._call("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"})
        if headers.get("X-Goog-Generation", file.etag) != file.etag or len(content) != stop - start:
            raise SourceChanged(file.name)
        return bytes(content)

    async def close(self) -> None:
        """Close the connections."""
        if self._system.session is not None:
            await self._system.session.close()

    def cause(self, error: Exception) -> int | Cause:
        """Return the HTTP status behind an exception of gcsfs, or the cause of one of google.auth or aiohttp."""
        from gcsfs.retry import HttpError
        from google.auth.exceptions import GoogleAuthError, TransportError

        if isinstance(error, FileNotFoundError):
            return 404
        if isinstance(error, HttpError) and str(error.code).isdecimal():
            return int(error.code)
        if isinstance(error, ValueError):
            return 400
        if type(error) is OSError and str(error).startswith("Forbidden"):
            return 403
        is_of_credentials = isinstance(error, GoogleAuthError) and not isinstance(error, TransportError)
        return "credentials" if is_of_credentials else "network"


def file_of(entry: Entry) -> RemoteFile:
    """Return the file of an object resource of the JSON API."""
    return RemoteFile(entry["name"], int(entry.get("size", 0)), str(entry["generation"]))


def _connect() -> Any:
    from aiohttp import ClientTimeout
    from gcsfs.core import GCSFileSystem
    from google.auth.exceptions import DefaultCredentialsError, TransportError

    options = {
        "access": "read_only",
        "skip_instance_cache": True,
        "use_listings_cache": False,
        "requests_timeout": ClientTimeout(connect=CONNECT_TIMEOUT_S),
        "session_kwargs": {"trust_env": True},  # the proxy of the environment
    }
    try:
        return GCSFileSystem(token="google_default", **options)  # noqa: S106 - the name of a method, not a secret
    except TransportError as error:
        raise ConnectionError("no answer of the service of credentials") from error
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return GCSFileSystem(token="anon", **options)  # noqa: S106
