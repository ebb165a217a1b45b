"""Read a bucket of S3, or of a service with the API of S3, with s3fs."""

from typing import Any

from extensions.sources.bucket_remote import (
    CONNECT_TIMEOUT_S,
    MAX_NAMES,
    REQUEST_TIMEOUT_S,
    Cause,
    Entry,
    Page,
)
from frameworks.core.addresses import SourceAddress
from frameworks.sources.contract import RemoteFile, SourceChanged


class S3Bucket:
    """A bucket of S3.

    Credentials, region and endpoint come from the environment and the files of the AWS tools. Without credentials the
    requests are anonymous, as public buckets allow.
    """

    remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and AWS_REGION in the environment"

    def __init__(self, address: SourceAddress) -> None:
        self._bucket = address.repository
        self._system = _connect(is_anonymous=False)

    async def list_page(self, prefix: str, token: str | None) -> Page:
        """Return names directly below a prefix."""
        position = {"ContinuationToken": token} if token else {}
        page = await self._call("list_objects_v2", Prefix=prefix, Delimiter="/", MaxKeys=MAX_NAMES, **position)
        files = tuple(file_of(entry) for entry in page.get("Contents", []) if not entry["Key"].endswith("/"))
        folders = tuple(entry["Prefix"].rstrip("/") for entry in page.get("CommonPrefixes", []))
        return Page(files, folders, page.get("NextContinuationToken") or None)

    async def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of bytes.

        The etag of the answer is compared, instead of If-Match, which not every service has.
        """
        answer = await self._call("get_object", Key=file.name, Range=f"bytes={start}-{stop - 1}")
        async with answer["Body"] as body:
            if _etag(answer.get("ETag")) != file.etag or answer["ContentLength"] != stop - start:
                raise SourceChanged(file.name)
            pieces = []
            missing = stop - start
            while missing > 0 and (piece := await body.read(missing)):
                pieces.append(piece)
                missing -= len(piece)
        return b"".join(pieces)

    async def close(self) -> None:
        """Close the connections."""
        await _close(self._system)

    def cause(self, error: Exception) -> int | Cause:
        """Return the HTTP status behind an exception of s3fs, or the cause of one of botocore without an answer."""
        from botocore import exceptions

        response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        if isinstance(status, int):
            return status
        settings = (
            exceptions.ParamValidationError,
            exceptions.PartialCredentialsError,
            exceptions.ProfileNotFound,
            exceptions.ConfigParseError,
            exceptions.InvalidRegionError,
            ValueError,
        )
        credentials = (
            exceptions.NoCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError,
            exceptions.SSOError,
        )
        if isinstance(error, settings):
            return "settings"
        return "credentials" if isinstance(error, credentials) else "network"

    async def _call(self, method: str, **parameters: Any) -> Any:
        """Send a request, and send it again without a signature where there are no credentials."""
        from botocore.exceptions import NoCredentialsError

        try:
            return await self._system._call_s3(method, Bucket=self._bucket, **parameters)
        except NoCredentialsError:
            if self._system.anon:
                raise
        await _close(self._system)
        self._system = _connect(is_anonymous=True)
        return await self._system._call_s3(method, Bucket=self._bucket, **parameters)


def file_of(entry: Entry) -> RemoteFile:
    """Return the file of an entry of ListObjectsV2."""
    return RemoteFile(entry["Key"], int(entry["Size"]), _etag(entry.get("ETag")))


def _etag(text: str | None) -> str:
    """Return an etag without its quotes, which some services leave out of some answers."""
    return (text or "").strip('"')


def _connect(*, is_anonymous: bool) -> Any:
    from s3fs import S3FileSystem

    system = S3FileSystem(
        anon=is_anonymous,
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": REQUEST_TIMEOUT_S,
            "retries": {"total_max_attempts": 1},
        },
    )
    system.retries = 1  # the store repeats requests
    return system


async def _close(system: Any) -> None:
    if system._s3 is not None:
        await system._s3.close()
