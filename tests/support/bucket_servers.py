"""Answer the requests of gcsfs and adlfs on loopback, in the forms that the two services document.

Google Cloud Storage: https://cloud.google.com/storage/docs/json_api/v1/objects. Azure Blob Storage:
https://learn.microsoft.com/en-us/rest/api/storageservices/list-blobs.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape


class BucketServer(ThreadingHTTPServer):
    """A server of one bucket. `files`: name → content and number of its version. `status`: answers each request."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.files: dict[str, tuple[bytes, int]] = {}
        self.status: int | None = None
        self.requests = 0
        self._version = 1_700_000_000_000_000

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, content: bytes) -> None:
        self._version += 1
        self.files[name] = content, self._version

    def listed(self, query: dict[str, str], limit: int, start: int) -> tuple[list[str], list[str], int | None]:
        """Return files, folders with `/` at their ends, and where the next page begins."""
        prefix = query.get("prefix", "")
        names = sorted(name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
        below = list(dict.fromkeys(re.sub("/.*", "/", name) for name in names))
        page = [prefix + name for name in below[start : start + limit]]
        following = start + limit if start + limit < len(below) else None
        return [n for n in page if not n.endswith("/")], [n for n in page if n.endswith("/")], following


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BucketServer

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.status is not None:
            return self.send(self.server.status, b"{}")
        parts = urlsplit(self.path)
        return self.answer(unquote(parts.path), dict(parse_qsl(parts.query)))

    def answer(self, path: str, query: dict[str, str]) -> None:
        raise NotImplementedError

    def send_range(self, content: bytes, headers: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("x-ms-range") or self.headers["Range"])
        assert match is not None
        start, stop = int(match[1]), min(int(match[2]) + 1, len(content))
        if start >= stop:
            return self.send(416, b"{}")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.send(206, content[start:stop], headers)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _GoogleHandler(_Handler):
    def answer(self, path: str, query: dict[str, str]) -> None:
        place, _, name = path.partition("/b/bucket/o")
        if place == "/storage/v1" and not name:
            return self._list(query)
        if place != "/download/storage/v1":
            return self.send(404, b"Not Found")
        content, version = self.server.files.get(name[1:], (b"", 0))
        if str(version) != query.get("generation"):
            return self.send(404, b"No such object")
        return self.send_range(content, {"X-Goog-Generation": str(version)})

    def _list(self, query: dict[str, str]) -> None:
        files, folders, following = self.server.listed(query, int(query["maxResults"]), int(query.get("pageToken", 0)))
        page: dict[str, Any] = {"kind": "storage#objects"}
        if files:
            page["items"] = [google_entry(name, *self.server.files[name]) for name in files]
        if folders:
            page["prefixes"] = folders
        if following is not None:
            page["nextPageToken"] = str(following)
        self.send(200, json.dumps(page).encode(), {"Content-Type": "application/json"})


def google_entry(name: str, content: bytes, version: int) -> dict[str, Any]:
    """Return an object resource of the JSON API."""
    return {
        "kind": "storage#object",
        "id": f"bucket/{name}/{version}",
        "name": name,
        "bucket": "bucket",
        "generation": str(version),
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "size": str(len(content)),
        "md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg==",
        "crc32c": "AAAAAA==",
        "etag": "CNjHg4Ll14gDEAE=",
        "timeCreated": "2026-01-02T03:04:05.678Z",
        "updated": "2026-01-02T03:04:05.678Z",
    }


class _AzureHandler(_Handler):
    def answer(self, path: str, query: dict[str, str]) -> None:
        _, account, container, name = f"{path}/".split("/", 3)
        if (account, container) != ("account", "bucket"):
            return self._send_error(404, "ContainerNotFound")
        if query.get("comp") == "list":
            return self._list(query)
        content, version = self.server.files.get(name.rstrip("/"), (b"", 0))
        if not version:
            return self._send_error(404, "BlobNotFound")
        etag = f'"0x{version:X}"'
        if self.headers["If-Match"] != etag:
            return self._send_error(412, "ConditionNotMet")
        return self.send_range(content, {"ETag": etag, "x-ms-blob-type": "BlockBlob"})

    def _list(self, query: dict[str, str]) -> None:
        files, folders, following = self.server.listed(query, int(query["maxresults"]), int(query.get("marker", 0)))
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Etag>0x{version:X}</Etag>"
            f"<Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><BlobType>BlockBlob</BlobType>"
            f"<Content-Length>{len(content)}</Content-Length></Properties></Blob>"
            for name, (content, version) in ((name, self.server.files[name]) for name in files)
        )
        prefixes = "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders)
        body = (
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="{self.server.url}/account/" '
            f'ContainerName="bucket"><Delimiter>/</Delimiter><Blobs>{blobs}{prefixes}</Blobs>'
            f"<NextMarker>{'' if following is None else following}</NextMarker></EnumerationResults>"
        )
        self.send(200, body.encode(), {"Content-Type": "application/xml"})

    def _send_error(self, status: int, code: str) -> None:
        body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>-</Message></Error>'
        self.send(status, body.encode(), {"Content-Type": "application/xml", "x-ms-error-code": code})


@contextmanager
def running_google() -> Iterator[BucketServer]:
    """Run a server with the JSON API of Google Cloud Storage for the bucket `bucket`."""
    with _running(_GoogleHandler) as server:
        yield server


@contextmanager
def running_azure() -> Iterator[BucketServer]:
    """Run a server with the API of Azure Blob Storage for the container `bucket` of `account`."""
    with _running(_AzureHandler) as server:
        yield server


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[BucketServer]:
    with BucketServer(handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
