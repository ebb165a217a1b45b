"""Send the requests of a run to a running server, over a few connections that stay open."""

import asyncio
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
import orjson

from app.cli.failures import is_lasting, reason_of, refused_key
from extensions.offline.contract import (
    ANY_SIDE,
    Generated,
    RequestRefused,
    RowAnswer,
    RunFailed,
    RunModelDescription,
    Shape,
    WrongCommand,
)
from frameworks.tasks.types import TaskAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, MultiVectorAnswer, SparseAnswer

_TIMEOUT_S = 600.0
_MAX_ANSWER_BYTES = 512 * 1024 * 1024
"""Larger than any answer to a window of rows; a server that sends without end must not fill the memory."""
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0
_REFUSED_ROWS = frozenset({400, 413, 507})
_UNAUTHENTICATED, _NOT_FOUND = 401, 404
_TRY_LATER = frozenset({429, 502, 503, 504})


class ServerReply(NamedTuple):
    """`status` 0: no response arrived, and `content` has the reason. `is_lasting`: a retry would not help."""

    status: int
    content: Any
    retry_after_s: float | None = None
    is_lasting: bool = False


class ServerModel:
    """A RunModel. A server that is busy or absent is asked again for `patience_s` seconds."""

    rows_per_request = 32

    def __init__(
        self,
        url: str,
        name: str,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
        concurrency: int = 8,
        patience_s: float = 60.0,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`headers`: authenticate the requests. `note`: called with the reason why the start waits for the server.

        Raises WrongCommand for a URL that is none, or without the model; RunFailed where no server answers."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongCommand(f'--url: expected an http:// or https:// address, got "{url}"')
        self._url = url.rstrip("/")
        self._parts = parts
        self._headers = headers
        self._tls = tls
        self._patience_s = patience_s
        self._note = note
        self._path = parts.path.rstrip("/") + f"/models/{quote(name)}"
        self._local = threading.local()
        self._closed = threading.Event()
        self._connections: set[http.client.HTTPConnection] = set()
        self.concurrency = concurrency
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="requests")
        try:
            self.description = self._describe(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the threads. Requests that are sent are completed, delays are cut short."""
        self._closed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections:
            connection.close()

    async def answer(self, body: bytes) -> RowAnswer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, body)

    async def post(self, path: str, body: bytes) -> Any:
        """Return the content of the answer to a request for another path of the server.

        Raises RequestRefused, WrongCommand, RunFailed.
        """
        path = self._parts.path.rstrip("/") + path
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, "POST", path, body)

    def _answer(self, body: bytes) -> RowAnswer:
        return _to_answer(self._ask("POST", self._path + "/infer", body), is_task=bool(self.description.reads))

    def _describe(self, name: str) -> RunModelDescription:
        try:
            model = self._ask("GET", self._path, b"", is_first=True)
        except RequestRefused as error:
            raise WrongCommand(f"--url: expected a model at {self._url}, got {error}") from error
        if model["task"] is None:
            raise RunFailed(f'MODEL: expected a loaded model, got "{name}", which is {model["state"]}; load it first')
        identity = {"name": model["name"], "version": model["active_version"], "dtype": model["dtype"]}
        image, vision = model.get("image"), model.get("vision")
        return RunModelDescription(
            model["name"],
            model["task"],
            _shapes(model["inputs"]),
            _shapes(model["outputs"]),
            identity,
            image_size=image and (image["height"] or ANY_SIDE, image["width"] or ANY_SIDE),
            reads=tuple(model.get("reads") or ()),
            vectors=model.get("vectors") or "dense",
            max_images=vision["max_images"] if vision else 0,
        )

    def _ask(self, method: str, path: str, body: bytes, is_first: bool = False) -> Any:
        """Return the content of a 200; ask again while the server is busy. Runs on a thread.

        `is_first`: a reason that a retry does not change ends the run; later it may be that of a restart.
        """
        give_up_s = time.monotonic() + self._patience_s
        delay_s = _FIRST_DELAY_S
        while True:
            reply = self._send(method, path, body)
            if reply.status == 200:
                return reply.content
            message = _message_of(reply)
            if reply.status in _REFUSED_ROWS:
                raise RequestRefused(message)
            if reply.status == _UNAUTHENTICATED:
                raise WrongCommand(refused_key(message))
            if is_first and reply.status == _NOT_FOUND:
                raise WrongCommand(f"MODEL: {message}")
            if reply.status and reply.status not in _TRY_LATER:
                raise WrongCommand(f"--url: {self._url} answered {reply.status}: {message}")
            wait_s = delay_s if reply.retry_after_s is None else reply.retry_after_s
            if is_first and not reply.is_lasting and delay_s == _FIRST_DELAY_S:
                self._note(f"waiting for {self._url}: {message}")
            is_over = is_first and reply.is_lasting
            if is_over or time.monotonic() + wait_s > give_up_s or self._closed.wait(wait_s):
                raise RunFailed(f"--url: expected an answer of {self._url}, got {message}")
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _send(self, method: str, path: str, body: bytes) -> ServerReply:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            self._connections.add(connection)
        headers = {"content-type": "application/json", **self._headers}
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            content = response.read(_MAX_ANSWER_BYTES + 1)
            if response.length and len(content) <= _MAX_ANSWER_BYTES:
                raise http.client.IncompleteRead(content, response.length)
        except (OSError, http.client.HTTPException) as error:
            # A new connection for the next request: this one is in an unknown state.
            connection.close()
            self._connections.discard(connection)
            self._local.connection = None
            return ServerReply(0, reason_of(error), is_lasting=is_lasting(error))
        if len(content) > _MAX_ANSWER_BYTES:
            raise RunFailed(f"--url: expected at most {_MAX_ANSWER_BYTES} bytes in an answer of {self._url}, got more")
        return ServerReply(response.status, _decode(content), _seconds(response.getheader("retry-after")))

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)


def _to_answer(content: Any, is_task: bool) -> RowAnswer:
    if is_task:
        return TaskAnswer(content["predictions"])
    if "multi_embeddings" in content:
        vectors = [np.asarray(each, np.float32) for each in content["multi_embeddings"]]
        return MultiVectorAnswer(vectors, content.get("tokens", 0))
    if "sparse_embeddings" in content:
        sparse = content["sparse_embeddings"]
        return SparseAnswer(
            [np.asarray(each["indices"], np.int32) for each in sparse],
            [np.asarray(each["values"], np.float32) for each in sparse],
            content.get("tokens", 0),
        )
    if "embeddings" in content:
        return EmbedAnswer(np.asarray(content["embeddings"], np.float32), content.get("tokens", 0))
    if "predictions" in content:
        return ClassifyAnswer([[(each["label"], each["score"]) for each in row] for row in content["predictions"]])
    if "outputs" in content:
        return {name: _to_value(output) for name, output in content["outputs"].items()}
    return Generated(content["text"], content["finish_reason"], content["tokens_generated"])


def _to_value(output: Any) -> Any:
    """Return an output as an array; a sequence stays a list."""
    dtype = {"string": "object", "bfloat16": "float32"}.get(output["dtype"], output["dtype"])
    if output["shape"] is None or "(" in dtype:
        return output["data"]
    # null is NaN or an infinity: JSON has neither.
    kind = np.dtype(dtype)
    return np.asarray(output["data"], np.float64 if kind.kind == "f" else kind).astype(kind).reshape(output["shape"])


def _shapes(described: list[dict[str, Any]] | None) -> dict[str, Shape]:
    return {each["name"]: None if each["shape"] is None else tuple(each["shape"]) for each in described or ()}


def _message_of(reply: ServerReply) -> str:
    if isinstance(reply.content, dict) and isinstance(reply.content.get("error"), dict):
        return str(reply.content["error"].get("message", reply.content))
    return str(reply.content)[:500].strip()


def _decode(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="replace")


def _seconds(header: str | None) -> float | None:
    """Return the seconds of Retry-After. Its other form, a date, is not used."""
    return float(header) if header is not None and header.isdecimal() else None
