"""A hub of models on loopback, with the API that Hugging Face's hub has, for tests of downloads.

Its faults are those of the web server: cut, held and refused responses. Wrong bytes: set `web.files[hub.path(…)]`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.web_server import WebServer, web_server

_LARGE_SUFFIXES = (".safetensors", ".onnx", ".bin", ".onnx_data")


class Hub:
    """Serves repositories. `web`: the server, with its faults, requests and files.

    Large files have the host `localhost` instead of `127.0.0.1`: clients do not send it the token.
    """

    def __init__(self, web: WebServer) -> None:
        self.web = web

    @property
    def environment(self) -> dict[str, str]:
        """The environment with which a process uses this hub."""
        return {"HF_ENDPOINT": self.web.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": self.web.faults.token}

    def publish(self, repository: str, files: Mapping[str, bytes], *revisions: str) -> str:
        """Commit the files of a repository; return the commit. `revisions`: branches and tags, default `main`.

        Large files are stored as by Git LFS: they are found by their SHA-256, behind a redirect.
        """
        listed = [_sibling(name, content) for name, content in files.items()]
        commit = hashlib.sha1(json.dumps([repository, listed]).encode()).hexdigest()
        answer = {"_id": "1", "id": repository, "modelId": repository, "sha": commit, "siblings": listed, "tags": []}
        listings = [f"/revision/{revision}" for revision in (*(revisions or ("main",)), commit)]
        for path in [*listings, ""] if "/revision/main" in listings else listings:
            self.web.files[f"/api/models/{repository}{path}"] = json.dumps(answer).encode()
        for name, content in files.items():
            path = f"/{repository}/resolve/{commit}/{name}"
            self.web.headers[path] = {"X-Repo-Commit": commit}
            if name.endswith(_LARGE_SUFFIXES):
                digest = hashlib.sha256(content).hexdigest()
                self.web.headers[path] |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
                self.web.redirects[path] = f"http://localhost:{self.web.port}/cdn/{digest}?signature=secret"
                path = f"/cdn/{digest}"
            else:
                self.web.etags[path] = f'"{_git_blob(content)}"'
            self.web.files[path] = content
        return commit

    def publish_folder(self, repository: str, folder: Path, *revisions: str) -> str:
        """Commit the files of a folder; return the commit."""
        files = {each.relative_to(folder).as_posix(): each for each in sorted(folder.rglob("*")) if each.is_file()}
        return self.publish(repository, {name: file.read_bytes() for name, file in files.items()}, *revisions)

    def path(self, repository: str, commit: str, name: str) -> str:
        """Return the path in `web.files` of a file's content."""
        path = f"/{repository}/resolve/{commit}/{name}"
        return urlsplit(self.web.redirects.get(path, path)).path

    def downloads(self) -> list[str]:
        """Return the paths of the contents that were requested, in order; not those of lists and redirects."""
        paths = [each.path.partition("?")[0] for each in self.web.requests]
        return [path for path in paths if path in self.web.files and not path.startswith("/api/")]


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """Run a hub without repositories."""
    with web_server() as web:
        yield Hub(web)


def _sibling(name: str, content: bytes) -> dict[str, object]:
    if not name.endswith(_LARGE_SUFFIXES):
        return {"rfilename": name, "size": len(content), "blobId": _git_blob(content)}
    digest = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()
    lfs = {"sha256": digest, "size": len(content), "pointerSize": len(pointer)}
    return {"rfilename": name, "size": len(content), "blobId": _git_blob(pointer), "lfs": lfs}


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
