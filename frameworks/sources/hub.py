"""Read repositories of models on a Hugging Face hub: the one of HF_ENDPOINT, with the user's token.

huggingface_hub finds the token and knows the URLs. It sends no requests: they have no limits there, and
HF_HUB_OFFLINE, which the PyTorch side sets for transformers, refuses them.
"""

import os
import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

import msgspec

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.sources import offline
from frameworks.sources.contract import Listing, RemoteFile
from frameworks.sources.http_bytes import HttpBytes

_MAX_LISTING_BYTES = 16 << 20
_TOKEN = re.compile(r"[!-~]{1,4096}", re.ASCII)
_ADVICE = "check the name, and give a token in HF_TOKEN for a private or gated model"


_Sha1 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _LargeFile(msgspec.Struct):
    sha256: _Sha256


class _File(msgspec.Struct, rename={"name": "rfilename", "git_sha1": "blobId"}):
    """A file of a repository. `git_sha1`: of a large file that of its pointer."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    git_sha1: _Sha1
    lfs: _LargeFile | None = None

    def described(self) -> RemoteFile:
        if self.lfs is not None:
            return RemoteFile(self.name, self.size, self.git_sha1, self.lfs.sha256)
        return RemoteFile(self.name, self.size, self.git_sha1, None, self.git_sha1)


class _Repository(msgspec.Struct):
    """The answer of a hub that describes a repository at one commit, `sha`."""

    sha: _Sha1
    siblings: tuple[_File, ...]


class HubRemote:
    """A repository of models. `read` reads the commit that `list_files` has found."""

    def __init__(self, address: SourceAddress) -> None:
        """Open no connection. Raises InvalidModel where HF_ENDPOINT or the token is invalid."""
        from huggingface_hub import constants

        self._address = address
        self._endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        if not self._endpoint.startswith(("https://", "http://")):
            raise InvalidModel("HF_ENDPOINT: expected https://host, got another text; correct it")
        token = _token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._bytes = HttpBytes(headers, _ADVICE, allows_plain=True)
        self._commit = ""

    def list_files(self) -> Listing:
        """Return all files of the repository at the address's revision, with their hashes."""
        if offline.IS_HUB_OFFLINE:
            raise offline.HubOffline(f"{self._address}: expected access to the hub, got HF_HUB_OFFLINE=1")
        revision = f"/revision/{quote(self._address.revision, safe='')}" if self._address.revision else ""
        url = f"{self._endpoint}/api/models/{self._address.repository}{revision}?blobs=true"
        body = self._bytes.document(url, _MAX_LISTING_BYTES)
        if body is None:
            raise InvalidModel(
                f"{self._address}: expected a model of the hub, got no such model or revision; {_ADVICE}"
            )
        try:
            repository = msgspec.json.decode(body, type=_Repository)
        except (ValueError, RecursionError) as error:
            raise InvalidModel(
                f"{self._address}: expected names, sizes and hashes from the hub, got another answer; check HF_ENDPOINT"
            ) from error
        commit = repository.sha
        if self._address.commit not in (None, commit):
            raise InvalidModel(f"{self._address}: expected this commit from the hub, got {commit}; check HF_ENDPOINT")
        self._commit = commit
        return Listing(tuple(each.described() for each in repository.siblings), commit)

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `offset` on. Its hash, not its etag, shows that it is the listed one."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self._address.repository, file.name, revision=self._commit, endpoint=self._endpoint)
        return self._bytes.read(url, file.size, offset)

    def close(self) -> None:
        """Do nothing: each connection ends with its response."""


def _token() -> str | None:
    """Return the user's token from HF_TOKEN or from the file of `hf auth login`."""
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception as error:  # noqa: BLE001 - the message may hold the token
        raise InvalidModel(f"HF_TOKEN: expected a readable token, got {type(error).__name__}; log in again") from None
    if token is not None and not _TOKEN.fullmatch(token):
        raise InvalidModel("HF_TOKEN: expected letters, digits and punctuation, got another character; log in again")
    return token
