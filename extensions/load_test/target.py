"""Find out which requests a server takes: protocol, model and path, from its own descriptions."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from app.cli.failures import printable, reason_of, refused_key
from extensions.load_test.connection import Connection, RequestFailure, ServerAddress

Credentials = Callable[[str, str, bytes], dict[str, str]]
"""credentials(method, path, body) → headers that authenticate the request. `path`: with the prefix of the URL."""

_OPENAI_PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "openai-embeddings": "/v1/embeddings",
}
_MAX_NAMES = 20
_MAX_TEXT = 200
"""Characters of an answer that is not JSON."""
_OPTIONS = {401: "--api-key", 403: "--api-key", 404: "--model"}
"""The option that is wrong, by the status of a missing description."""


class NoTarget(Exception):
    """The server cannot be measured with these options; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where requests are sent. `description`: of the model; empty if the protocol has none.

    `encoding` of requests: json, binary (JSON with binary tensors) or protobuf.
    """

    address: ServerAddress
    protocol: str
    model: str
    path: str
    description: dict[str, Any]
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that select the target. `is_binary` None: only if JSON cannot represent the tensors."""

    protocol: str | None
    model: str | None
    is_binary: bool | None = None


class RequestWriter:
    """Writes the bytes of requests."""

    def __init__(self, address: ServerAddress, credentials: Credentials, is_signed: bool) -> None:
        """`is_signed`: the credentials differ from request to request."""
        self._address = address
        self._credentials = credentials
        self.is_signed = is_signed

    def write(self, method: str, path: str, body: bytes = b"", own: tuple[tuple[str, str], ...] = ()) -> bytes:
        """Return head and body. `own`: headers of the body. Raises ValueError for a key that cannot be sent."""
        whole = self._address.prefix + path
        headers = {"host": self._address.authority, "user-agent": "roundhouse-bench", "accept": "*/*"}
        if method == "POST":
            headers |= dict(own) | {"content-length": str(len(body))}
        headers |= self._credentials(method, whole, body)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {whole} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


async def find_target(address: ServerAddress, writer: RequestWriter, wanted: Wanted, timeout_s: float) -> LoadTarget:
    """Choose protocol, model and form. Raises NoTarget, ValueError for a key that cannot be sent."""
    protocol, model = wanted.protocol, wanted.model
    if protocol in {None, "native"}:
        return await _native(address, writer, model, timeout_s)
    assert protocol is not None
    if protocol == "v2":
        if model is None:
            raise NoTarget("--model: expected the name of a model, got none; --protocol v2 needs it")
        path = f"/v2/models/{quote(model, safe='')}"
        description = await _get(address, writer, path, timeout_s)
        is_binary = _needs_binary(description) if wanted.is_binary is None else wanted.is_binary
        return LoadTarget(address, protocol, model, f"{path}/infer", description, "binary" if is_binary else "json")
    if model is None:
        listed = await _get(address, writer, "/v1/models", timeout_s)
        model = _only(_own_names(listed.get("data")))
    return LoadTarget(address, protocol, model, _OPENAI_PATHS[protocol], {})


async def _native(address: ServerAddress, writer: RequestWriter, model: str | None, timeout_s: float) -> LoadTarget:
    if model is None:
        listed = await _get(address, writer, "/models", timeout_s)
        model = _only(_names(listed.get("models"), "name"))
    path = f"/models/{quote(model, safe='')}"
    description = await _get(address, writer, path, timeout_s)
    if "task" not in description:
        raise NoTarget(
            "--protocol: expected a Roundhouse server at --url, got another; choose a protocol that it speaks"
        )
    return LoadTarget(address, "native", model, f"{path}/infer", description)


def _needs_binary(description: dict[str, Any]) -> bool:
    from extensions.load_test.inputs.open_inference import needs_binary

    return needs_binary(description)


def _names(listed: Any, key: str) -> list[str]:
    if not isinstance(listed, list):
        raise NoTarget("--protocol: expected a list of models from the server, got none; choose a protocol it speaks")
    names = [each.get(key) for each in listed if isinstance(each, dict)]
    return [name for name in names if isinstance(name, str)]


def _own_names(listed: Any) -> list[str]:
    """Return the names of models in OpenAI's list, without the aliases and adapters of other entries."""
    names = _names(listed, "id")
    roots = {each.get("id"): each.get("root") for each in listed if isinstance(each, dict)}
    return [name for name in names if roots[name] == name or roots[name] not in names]


def _only(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise NoTarget("--model: expected a server with a model, got one without")
    shown = ", ".join(printable(name) for name in names[:_MAX_NAMES])
    raise NoTarget(f"--model: expected one of {shown}, got none; name one")


async def _get(address: ServerAddress, writer: RequestWriter, path: str, timeout_s: float) -> dict[str, Any]:
    where = f"{address.authority}{address.prefix}{path}"
    try:
        async with asyncio.timeout(timeout_s):
            connection = await Connection.connect(address)
            try:
                response = await connection.send(writer.write("GET", path))
            finally:
                connection.close()
    except TimeoutError:
        raise NoTarget(f"--url: expected a response from {where} in {timeout_s:g} s, got none") from None
    except RequestFailure as error:
        if isinstance(error.__cause__, ssl.SSLError):
            raise NoTarget(f"--url: expected a server at {where}, got {reason_of(error.__cause__)}") from None
        reason = str(error).replace("_", " ")
        remedy = "say https:// for a port of https, or --protocol grpc for one of gRPC"
        raise NoTarget(f"--url: expected an HTTP/1.1 server at {where}, got {reason}; {remedy}") from None
    except OSError as error:
        raise NoTarget(f"--url: expected a server at {where}, got {reason_of(error)}") from None
    try:
        answer = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        answer = None
    if response.status == 200 and isinstance(answer, dict):
        return answer
    message = error_message(answer)
    if message and response.status == 401:
        raise NoTarget(refused_key(message))
    # Only a server with models explains itself.
    option = _OPTIONS.get(response.status, "--url") if message else "--url"
    message = message or printable(response.body.decode("latin-1").strip(), _MAX_TEXT)
    raise NoTarget(f"{option}: expected a description at {where}, got {response.status} {message}".rstrip())


def error_message(answer: Any) -> str:
    """Return the message of an error in the native form, that of OpenAI or that of Open Inference."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return printable(message, 500) if isinstance(message, str) else ""


def error_code(answer: Any) -> str:
    """Return the code of an error, and "" if there is none. Open Inference has messages only."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return ""
    for key in ("code", "type"):
        if isinstance(error.get(key), str):
            return printable(error[key], 48)
    return ""
