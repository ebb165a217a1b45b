"""Fetch a model from a web server, which lists no files: request those that models have by their usual names."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.sources.contract import Listing, RemoteFile
from frameworks.sources.http_bytes import ABSENT, HttpBytes
from frameworks.sources.served_files import INDEX, MAX_MODULES, MODULE_FOLDER, WEIGHTS

_TEXT_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "processor_config.json",
    "labels.txt",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
_MODULES: Final = "modules.json"
_GRAPHS: Final = ("model.onnx", "onnx/model.onnx")
_DATA_OF_FILE: Final = ("_data", ".data")
_DATA_OF_STEM: Final = (".data", "_data", ".bin", ".weight", ".weights")
"""Ends of the names of a graph's external data, after its name and after its name without `.onnx`."""

_SHARD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}\.safetensors", re.ASCII)
_MAX_SHARDS: Final = 1000
_MAX_JSON_BYTES: Final = 1 << 24
_MAX_CONNECTIONS: Final = 8
# Public buckets answer 403 for objects that do not exist.
_ABSENT_OR_HIDDEN: Final = (*ABSENT, 401, 403)


class WebRemote:
    """One address of a web server. A file is known by its ETag, else by the time of its last change."""

    def __init__(self, address: SourceAddress, http: HttpBytes | None = None) -> None:
        self._address = address
        self._http = http or HttpBytes()

    def list_files(self) -> Listing:
        """Return the files of a model that the server has, by their usual names.

        For an `.onnx` file: its external data, and the text files of its folder and of the folder above.
        """
        graph = self._address.graph
        files = self._around(graph) if graph else self._below(self._address.path)
        if not files:
            raise InvalidModel(
                f"{self._address}: expected {WEIGHTS}, {INDEX} or {_GRAPHS[0]} in the folder, got none; "
                "check the address and the right to read it"
            )
        return Listing(tuple(files))

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `offset` on. Raises SourceChanged."""
        if offset < file.size:
            yield from self._http.read(self._url(file.name), file.size, offset, file.etag)

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    def _below(self, folder: str) -> list[RemoteFile]:
        files = self._present(_join(folder, name) for name in (WEIGHTS, INDEX, *_GRAPHS))
        names = {file.name for file in files}
        if _join(folder, WEIGHTS) not in names and _join(folder, INDEX) in names:
            files += self._present(_join(folder, name) for name in self._shards(_join(folder, INDEX)))
        for graph in _GRAPHS:
            if _join(folder, graph) in names:
                files += self._external_data(_join(folder, graph))
        files += self._text_files(folder)
        if _join(folder, "onnx/model.onnx") in names:
            files += self._text_files(_join(folder, "onnx"))
        return files

    def _around(self, graph: str) -> list[RemoteFile]:
        found = self._find(graph, ABSENT)
        if found is None:
            raise InvalidModel(f"{self._address}: expected an .onnx file, got none; check the address")
        folder, _, _ = graph.rpartition("/")
        files = [found, *self._external_data(graph), *self._text_files(folder)]
        return files + (self._text_files(folder.rpartition("/")[0]) if folder else [])

    def _external_data(self, graph: str) -> list[RemoteFile]:
        stem = graph.removesuffix(".onnx")
        names = [graph + end for end in _DATA_OF_FILE] + [stem + end for end in _DATA_OF_STEM]
        return self._present(names)

    def _text_files(self, folder: str) -> list[RemoteFile]:
        """Return the text files of a folder, and the files of the modules of sentence-transformers below it."""
        files = self._present(_join(folder, name) for name in _TEXT_FILES)
        if _join(folder, _MODULES) in {file.name for file in files}:
            for module in self._modules(_join(folder, _MODULES)):
                names = (*_TEXT_FILES, WEIGHTS) if module.startswith("0_") else ("config.json", WEIGHTS)
                files += self._present(_join(folder, f"{module}/{name}") for name in names)
        return files

    def _shards(self, index: str) -> list[str]:
        """Return the names of the weights in an index, without those in other folders, which are then missing."""
        content = self._json(index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        found = weight_map.values() if isinstance(weight_map, dict) else ()
        names = sorted({name for name in found if isinstance(name, str) and _SHARD.fullmatch(name)})
        if len(names) > _MAX_SHARDS:
            raise InvalidModel(f"{self._url(index)}: expected at most {_MAX_SHARDS} shards, got {len(names)}")
        return names

    def _modules(self, name: str) -> list[str]:
        """Return the folders in modules.json, without those outside of the model."""
        content = self._json(name)
        modules = content[:MAX_MODULES] if isinstance(content, list) else []
        paths = [each.get("path") for each in modules if isinstance(each, dict)]
        return [path for path in paths if isinstance(path, str) and MODULE_FOLDER.fullmatch(path)]

    def _json(self, name: str) -> object:
        url = self._url(name)
        try:
            return json.loads(self._http.document(url, _MAX_JSON_BYTES) or b"null")
        except (ValueError, RecursionError):
            raise InvalidModel(f"{url}: expected JSON, got another content; upload it again") from None

    def _present(self, names: Iterable[str]) -> list[RemoteFile]:
        """Return those of the files that the server has, in the order of the names."""
        waiting: SimpleQueue[str] = SimpleQueue()
        found: dict[str, RemoteFile | None] = {}
        failures: list[Exception] = []
        for name in names:
            found[name] = None
            waiting.put(name)

        def find() -> None:
            with suppress(Empty):
                while not failures:
                    name = waiting.get_nowait()
                    try:
                        found[name] = self._find(name, _ABSENT_OR_HIDDEN)
                    except Exception as error:  # noqa: BLE001 - raised below, in the thread of the fetch
                        failures.append(error)

        # Daemons, because the process does not wait for a web server before it ends.
        threads = [Thread(target=find, name="source-head", daemon=True) for _ in range(_MAX_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [file for file in found.values() if file is not None]

    def _find(self, name: str, absent: Collection[int]) -> RemoteFile | None:
        head = self._http.head(self._url(name), absent)
        # Servers of web applications answer with a page where a file is absent.
        if head is None or head.headers.get("content-type", "").lower().startswith("text/html"):
            return None
        if head.size is None:
            raise InvalidModel(f"{self._url(name)}: expected a Content-Length, got none; serve it as a static file")
        if not head.etag:
            raise InvalidModel(
                f"{self._url(name)}: expected an ETag or Last-Modified, got neither; serve it as a static file"
            )
        return RemoteFile(name, head.size, head.etag)

    def _url(self, name: str) -> str:
        return f"https://{self._address.repository}/{name}"


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
