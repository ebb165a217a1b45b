"""Parse the addresses of models in hubs, buckets and web servers, like `hf://org/name@revision`."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Scheme = Literal["hf", "s3", "gs", "az", "https"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_MAX_CHARACTERS = 2048
# No space, control character, query, fragment, percent escape or backslash: an address has one spelling.
_LOCATION = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/-]+", re.ASCII)
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_HOST = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)
_EXAMPLE = "hf://org/name@revision, s3://bucket/folder or https://host/model.onnx"


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """The address of one model.

    `repository`: `org/name` of a hub, a bucket, or `host[:port]`. `path`: a folder or an `.onnx` file below it, with
    `/` between the parts and none at its ends; "" for the whole. `revision`: of a hub only; None: its default branch.
    """

    scheme: Scheme
    repository: str
    path: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.scheme}://{self.repository}{revision}{'/' if self.path else ''}{self.path}"

    @property
    def name(self) -> str:
        """The last part without `.onnx`, for a model that has no other name. Of `…/model.onnx`: its folder."""
        parts = [self.repository.split("/")[-1], *filter(None, self.path.split("/"))]
        stem = parts[-1].removesuffix(".onnx")
        return parts[-2] if stem == "model" and len(parts) > 1 else stem

    @property
    def graph(self) -> str | None:
        """The path of the `.onnx` file that the address names; None for a folder."""
        return self.path if self.path.endswith(".onnx") else None

    @property
    def commit(self) -> str | None:
        """The revision of a hub if it is a commit, whose files never change; else None."""
        return self.revision if self.revision is not None and _COMMIT.fullmatch(self.revision) else None

    def is_within(self, prefix: "SourceAddress | Scheme") -> bool:
        """Whether `prefix` allows this address: a whole scheme, or a repository or folder of the same revision.

        A prefix without a revision allows all of them.
        """
        if not isinstance(prefix, SourceAddress):
            return self.scheme == prefix
        if self.scheme != prefix.scheme or (prefix.revision is not None and self.revision != prefix.revision):
            return False
        own, other = [f"{each.repository}/{each.path}".strip("/").split("/") for each in (self, prefix)]
        return own[: len(other)] == other


def is_address(text: str) -> bool:
    """Whether a path is written as an address, of a scheme that is known or not."""
    return _ADDRESS.match(text) is not None


def parse_address(text: str) -> SourceAddress:
    """Return the address of a model. Raises ValueError, whose message says what was expected."""
    scheme, location = _split(text)
    if scheme == "hf":
        return _hub_address(location)
    repository, _, path = location.partition("/")
    if scheme == "https" and (not _HOST.fullmatch(repository.lower()) or not path):
        raise ValueError("expected https://host/path of a model's folder or .onnx file; credentials are not allowed")
    if "@" in repository:
        raise ValueError("expected an address without credentials; give them in the environment")
    return SourceAddress(scheme, repository.lower() if scheme == "https" else repository, path)


def parse_prefix(text: str) -> SourceAddress | Scheme:
    """Return an item of `models.sources`: an address, an organization of a hub, or a whole scheme like `hf://`.

    Raises ValueError.
    """
    for scheme in SCHEMES:
        if text.rstrip("/").lower() == f"{scheme}:":
            return scheme
    scheme, location = _split(text)
    parts = location.split("/")
    if (scheme == "hf" and len(parts) == 1 and _HUB_NAME.fullmatch(location)) or (
        scheme == "https" and len(parts) == 1 and _HOST.fullmatch(location.lower())
    ):
        return SourceAddress(scheme, location.lower() if scheme == "https" else location)
    return parse_address(text)


def _split(text: str) -> tuple[Scheme, str]:
    """Return the scheme, and the rest without `/` at its end."""
    match = _ADDRESS.fullmatch(text)
    if match is None or len(text) > _MAX_CHARACTERS:
        raise ValueError(f"expected an address of at most {_MAX_CHARACTERS} characters, like {_EXAMPLE}")
    name, location = match[1].lower(), match[2].rstrip("/")
    found = [each for each in SCHEMES if each == name]
    if not found:
        raise ValueError(f'expected the scheme {", ".join(SCHEMES)}, got "{name[:32]}"')
    if not _LOCATION.fullmatch(location) or any(part in ("", ".", "..") for part in location.split("/")):
        raise ValueError(f"expected letters, digits and punctuation without empty parts, like {_EXAMPLE}")
    return found[0], location


def _hub_address(location: str) -> SourceAddress:
    parts = location.split("/")
    name, _, revision = parts[1].partition("@") if len(parts) > 1 else ("", "", "")
    has_revision = len(parts) > 1 and "@" in parts[1]
    if not (_HUB_NAME.fullmatch(parts[0]) and _HUB_NAME.fullmatch(name)):
        raise ValueError("expected hf://org/name, hf://org/name@revision or hf://org/name@revision/folder")
    if has_revision and not _REVISION.fullmatch(revision):
        raise ValueError("expected a branch, tag or commit after @, of letters, digits, dots, dashes and underscores")
    return SourceAddress("hf", f"{parts[0]}/{name}", "/".join(parts[2:]), revision or None)
