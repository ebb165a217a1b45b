"""Read a container of Azure Blob Storage with adlfs."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from extensions.sources.bucket_remote import CONNECT_TIMEOUT_S, MAX_NAMES, REQUEST_TIMEOUT_S, Cause, Entry, Page
from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.sources.contract import RemoteFile

_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING")
_OPTIONS: Final[Mapping[str, int]] = {
    "connection_timeout": CONNECT_TIMEOUT_S,
    "read_timeout": REQUEST_TIMEOUT_S,
    "retry_total": 0,  # the store repeats requests
}


class AzureContainer:
    """A container of Azure Blob Storage.

    Account and credentials come from the environment, by the names of adlfs. Without credentials those of the machine
    are tried; requests are anonymous where AZURE_STORAGE_ANON is true.
    """

    remedy = (
        "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING in the environment, "
        "or AZURE_STORAGE_ANON=true for a public container"
    )

    def __init__(self, address: SourceAddress) -> None:
        """Raise InvalidModel where the environment names no account."""
        if not any(map(os.environ.get, _ACCOUNT)):
            raise InvalidModel(f"{address}: expected {' or '.join(_ACCOUNT)} in the environment, got none; set it")
        self._container = address.repository
        self._system = _connect(tuple(sorted(each for each in os.environ.items() if each[0].startswith("AZURE_"))))

    async def list_page(self, prefix: str, token: str | None) -> Page:
        """Return names directly below a prefix."""
        client = self._system.service_client.get_container_client(self._container)
        pages = client.walk_blobs(
            name_starts_with=prefix or None, delimiter="/", results_per_page=MAX_NAMES, **_OPTIONS
        ).by_page(token)
        files: list[RemoteFile] = []
        folders: list[str] = []
        async for page in pages:
            async for entry in page:
                if entry["name"].endswith("/"):
                    folders.append(entry["name"].rstrip("/"))
                else:
                    files.append(file_of(entry))
            break
        return Page(tuple(files), tuple(folders), pages.continuation_token or None)

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of bytes; another etag is an answer with status 412."""
        from azure.core import MatchConditions

        client = self._system.service_client.get_blob_client(self._container, file.name)
        stream = await client.download_blob(
            offset=start,
            length=stop - start,
            etag=f'"{file.etag}"',
            match_condition=MatchConditions.IfNotModified,
            max_concurrency=1,
            **_OPTIONS,
        )
        return bytes(await stream.readall())

    async def close(self) -> None:
        """Keep the connections: the file system is shared."""

    def cause(self, error: Exception) -> int | Cause:
        """Return the HTTP status or the cause of an exception of the Azure SDK."""
        from azure.core.exceptions import ClientAuthenticationError

        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return status
        if isinstance(error, ValueError):
            return "settings"
        return "credentials" if isinstance(error, ClientAuthenticationError) else "network"


def file_of(entry: Entry) -> RemoteFile:
    """Return the file of the properties of a blob."""
    return RemoteFile(entry["name"], int(entry["size"]), str(entry["etag"]).strip('"'))


@lru_cache(maxsize=2)
def _connect(settings: tuple[tuple[str, str], ...]) -> Any:
    """Return a file system for the settings of the environment.

    It is shared, because adlfs keeps each file system until the process ends.
    """
    from adlfs import AzureBlobFileSystem

    return AzureBlobFileSystem(skip_instance_cache=True, use_listings_cache=False)
