"""Random requests that no key allows, over HTTP and gRPC, and a check that only what needs no key is answered."""

import asyncio
import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import httpx

from app.auth.permissions import GRPC_ACCESS
from app.extension import http_access
from tests.support.keyring import MadeKey, make_key
from tests.support.signing import signed_headers

HTTP_ACCESS = http_access()

HEALTH_BODIES = (b'{"status":"live"}', b'{"status":"ready"}', b'{"live":true}', b'{"ready":true}')
HEALTH_METHODS = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
DOCUMENTS = (
    *("/openapi.json", "/docs", "/docs/"),
    *("/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"),
)
"""They describe the routes, and need no key."""
MODEL = "vector"

_ANSWER_LIMIT_S = 120.0
_MAX_REQUESTS_ON_CONNECTION = 12
_METHODS = ("GET", "GET", "POST", "POST", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "get")
_VALUES = {
    "name": MODEL, "version": "1", "adapter": "a", "file": "swagger-ui.css", "rest": "a", "collection": "a", "id": "a",
}  # fmt: skip
# Without the stream, whose response never ends.
_PATHS = [path.replace("rest:path", "rest").format_map(_VALUES) for path in HTTP_ACCESS if path != "/events"]
_SIGNED_CALL = "/inference.GRPCInferenceService/ServerLive"
REPLAYS = 20
"""Signed requests that are valid once."""
_REPLAYED = 0.05
_HOSTS = (*["localhost"] * 10, "127.0.0.1", "[::1]:8080", "a.example.org")
_INFER_BODY = b'{"input_data": [%b]}' % b", ".join([b"0.5"] * 16)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the server. `valid` allows everything; no request presents the whole of it, once, and in its place."""

    valid: MadeKey = field(default_factory=lambda: make_key("search"))
    expired: MadeKey = field(default_factory=lambda: make_key("search", lifetime_s=5))
    signed: MadeKey = field(default_factory=lambda: make_key("search", is_signed=True))
    revoked: MadeKey = field(default_factory=lambda: make_key("search"))

    @property
    def in_file(self) -> tuple[MadeKey, ...]:
        return self.valid, self.expired, self.signed


@dataclass(slots=True)
class Outcome:
    """Statuses of all responses, and the requests that should have been refused."""

    statuses: Counter[str] = field(default_factory=Counter)
    allowed: list[str] = field(default_factory=list)

    @property
    def responses(self) -> int:
        return self.statuses.total()


class Requests:
    """Make random requests. Equal seeds make equal requests, except for the keys."""

    def __init__(self, keys: Keys, seed: int) -> None:
        self._keys = keys
        self._random = random.Random(seed)
        signed = [_sign(keys, "POST", f"/models/{MODEL}/infer", _INFER_BODY) for _ in range(REPLAYS)]
        self.signed = [_request("POST", f"/models/{MODEL}/infer", headers, _INFER_BODY) for headers in signed]
        """Valid requests: each is answered once, and then refused as a replay."""
        self.signed_calls = [(_SIGNED_CALL, list(_sign(keys, "POST", _SIGNED_CALL).items())) for _ in range(REPLAYS)]
        """Valid calls, as `signed`."""

    def text(self) -> str:
        """Return a text that is no valid key: wrong, revoked, expired, cut, doubled, or encoded in an odd way."""
        keys, choose = self._keys, self._random
        text = keys.valid.text
        place = choose.randrange(len(text))
        ways: list[Callable[[], str]] = [
            lambda: keys.expired.text,
            lambda: keys.signed.text,
            lambda: keys.revoked.text,
            lambda: make_key("search").text,
            lambda: text[:place],
            lambda: text[place + 1 :],
            lambda: text + text,
            lambda: f"{text},{text}",
            lambda: f"{text} {text}",
            lambda: text[:place] + choose.choice(string.ascii_letters.replace(text[place], "")) + text[place + 1 :],
            lambda: text[:place] + f"%{ord(text[place]):02x}" + text[place + 1 :],
            lambda: text[:15] + keys.revoked.text[15:],
            lambda: f'"{text}"',
            lambda: text + "=",
            text.swapcase,
            keys.valid.key.secret_sha256.hex,
            lambda: f"rh_{keys.valid.key.key_id}_{keys.valid.key.secret_sha256.hex()}",
            lambda: f"rh_{keys.valid.key.key_id}_",
            lambda: "\u00e9" + text,
            lambda: "a" * choose.choice((1, 16, 512, 5000)),
            lambda: "",
        ]
        return choose.choice(ways)()

    def credentials(self) -> list[tuple[str, str]]:
        """Return headers that allow nothing: also signatures of other requests, and old ones."""
        choose, valid = self._random, self._keys.valid.text
        scheme = choose.choice(("Bearer ", "bearer ", "BEARER ", "Bearer  ", "Bearer\t", "Basic ", "Token ", ""))
        other = self.text()
        ways: list[list[tuple[str, str]]] = [
            [],
            [("authorization", scheme + other)],
            [("Authorization", f"Bearer {other}")],
            [("x-api-key", other)],
            [("X-API-KEY", other), ("authorization", f"Bearer {other}")],
            [("authorization", f"Basic {valid}")],
            [("authorization", valid)],
            [("authorization", f"Bearer {valid}"), ("authorization", f"Bearer {valid}")],
            [("x-api-key", valid), ("x-api-key", valid)],
            [("authorization", f"Bearer {valid}"), ("x-api-key", other)],
            [("cookie", f"authorization=Bearer {valid}; x-api-key={valid}")],
            [("proxy-authorization", f"Bearer {valid}")],
            [("api-key", valid), ("x-goog-api-key", valid), ("x_api_key", valid), ("x-auth-token", valid)],
            list(_sign(self._keys, "GET", "/absent").items()),
            list(_sign(self._keys, "GET", "/models", created=1).items()),
            [("x-forwarded-authorization", f"Bearer {valid}"), ("x-original-url", "/health/live")],
        ]
        return choose.choice(ways)

    def target(self) -> str:
        """Return the target of a request: a path of the server in an odd form."""
        choose, path = self._random, self._random.choice(_PATHS)
        place = choose.randrange(len(path))
        secret = self._keys.valid.text
        ways = [
            path, path, path,
            f"{path}/", f"{path}//", f"/{path}", path.replace("/", "//"), path.replace("/", "/./"),
            f"/health/live/..{path}", f"/health/live/%2e%2e{path}", f"{path}/../../health/live", f"{path}%2f",
            f"{path}/%2e", f"/%2e{path}", path.upper(), path.capitalize(), path.replace("/", "%2f"),
            path[:place] + f"%{ord(path[place]):02x}" + path[place + 1 :],
            path[:place] + f"%25{ord(path[place]):02x}" + path[place + 1 :],
            "/" + "".join(f"%{ord(each):02X}" for each in path[1:]),
            f"{path}%00", f"{path}%0a", f"{path};a=b", f"{path}#health/live", f"{path}?", f"{path}?/health/live",
            f"{path}?api_key={secret}", f"{path}?key={secret}", f"{path}?access_token={secret}", f"{path}?a={secret}",
            f"http://localhost{path}", f"http://user:{secret}@localhost{path}", f"//localhost{path}", f"\\{path}",
            f"/health/live{path}", f"/health{path}", "*", "/health/live", "/health/ready", "/v2/health/live",
            "/v2/health/ready", "/health/live/", path + "a" * choose.choice((10, 300, 5000)), path[place:] or "/",
        ]  # fmt: skip
        return choose.choice(ways)

    def http(self) -> tuple[bytes, bool]:
        """Return a request as bytes, and whether a server that refuses it can keep the connection."""
        choose = self._random
        if choose.random() < _REPLAYED:
            return choose.choice(self.signed), True
        method, target = choose.choice(_METHODS), self.target()
        lines = [f"{method} {target} HTTP/1.1", f"host: {choose.choice(_HOSTS)}"]
        lines += [f"{name}: {value}" for name, value in self.credentials()]
        way = choose.randrange(8)
        body = b""
        if way < 3 and method not in ("GET", "HEAD"):
            body = _INFER_BODY
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        elif way == 3:
            # The rest is never sent: a part of it looks like a request.
            body = b"GET /models HTTP/1.1\r\nhost: localhost\r\n\r\n"
            lines += ["content-type: application/json", "content-length: 100000"]
        elif way == 4:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_INFER_BODY), _INFER_BODY)
            lines += ["content-type: application/json", "transfer-encoding: chunked"]
        elif way == 5:
            lines += ["content-length: 10", "expect: 100-continue"]
        keeps = way not in (3, 5)
        return "\r\n".join([*lines, "", ""]).encode("utf-8") + body, keeps

    def call(self) -> tuple[str, list[tuple[str, str]]]:
        """Return a full method name and metadata."""
        choose, path = self._random, self._random.choice(list(GRPC_ACCESS))
        if choose.random() < _REPLAYED:
            return choose.choice(self.signed_calls)
        ways = [
            path, path, path, path + "/", path.upper(), path.replace(".", "/", 1), path + "x", f"/{path}",
            "/absent.Service/Call", path.replace("inference.", ""), "/grpc.health.v1.Health/Absent",
        ]  # fmt: skip
        metadata = [(name.lower(), value) for name, value in self.credentials()]
        # Clients of gRPC cannot send other values.
        while not all(value.isascii() and "\t" not in value for _, value in metadata):
            metadata = [(name.lower(), value) for name, value in self.credentials()]
        return choose.choice(ways), metadata


def _sign(keys: Keys, method: str, path: str, body: bytes = b"", created: int | None = None) -> dict[str, str]:
    return signed_headers(keys.signed.text, method, path, body, created=created)


def _request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def fuzz_http(port: int, keys: Keys, count: int, seed: int, connections: int = 32) -> Outcome:
    """Send `count` requests over connections from many addresses of loopback; return what the server answered."""
    requests, outcome = Requests(keys, seed), Outcome()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False, trust_env=False) as browser:
        open_bodies = (*HEALTH_BODIES, *[(await browser.get(path)).content for path in DOCUMENTS])
    left = count
    addresses = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first = Outcome()
    for request in requests.signed:
        assert await _exchange(reader, writer, request, first, open_bodies), "a signed request is answered once"
    writer.close()
    assert first.statuses == {"200": REPLAYS}, first.allowed

    async def client() -> None:
        nonlocal left
        while left > 0:
            # Refusals of one address are slowed.
            address = f"127.{addresses.randrange(1, 255)}.{addresses.randrange(255)}.{addresses.randrange(1, 255)}"
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            try:
                for _ in range(_MAX_REQUESTS_ON_CONNECTION):
                    left -= 1
                    request, keeps = requests.http()
                    is_open = await _exchange(reader, writer, request, outcome, open_bodies)
                    if not is_open or not keeps or left <= 0:
                        break
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(client())
    return outcome


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    outcome: Outcome,
    open_bodies: Sequence[bytes],
) -> bool:
    """Send a request and read its response; return whether the connection stays open."""
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            asks_for_body = head.startswith(b"HTTP/1.1 100 ")
            if asks_for_body:
                head = await reader.readuntil(b"\r\n\r\n")
            fields = head.decode("latin-1").lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in fields[1:] if line)
            length = int(headers.get("content-length", "0"))
            body = b"" if request.startswith(b"HEAD ") else await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        outcome.statuses["closed"] += 1
        return False
    status = int(fields[0].split()[1])
    outcome.statuses[str(status)] += 1
    needs_no_key = status == 200 and (body in open_bodies or (not body and length in map(len, open_bodies)))
    # A refusal comes before anything of the body is read.
    if not needs_no_key and (asks_for_body or status not in (400, 401, 403, 404, 405)):
        outcome.allowed.append(f"{request[:300]!r}: {status} {body[:100]!r}")
    return headers.get("connection") != "close"


async def fuzz_grpc(port: int, keys: Keys, count: int, seed: int, concurrent: int = 64) -> Outcome:
    """Make `count` calls over one connection; return the names of their statuses."""
    requests, outcome = Requests(keys, seed), Outcome()

    async def client(channel: grpc.aio.Channel, calls: int) -> None:
        for _ in range(calls):
            path, metadata = requests.call()
            status = await _status_of(channel, path, metadata)
            outcome.statuses[status] += 1
            # grpcio itself refuses long metadata. Metadata that is no valid header of HTTP/2 resets the stream.
            is_refused = status in ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED", _RESET)
            if not is_refused and not (status == "OK" and path in HEALTH_METHODS):
                outcome.allowed.append(f"{path} {metadata}: {status}")

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.TaskGroup() as group:
        for path, metadata in requests.signed_calls:
            assert await _status_of(channel, path, metadata) == "OK", "a signed call is answered once"
        for number in range(concurrent):
            group.create_task(client(channel, len(range(number, count, concurrent))))
    return outcome


_RESET = "reset"
"""Stands for the status of a call whose stream the server's HTTP/2 has refused."""


async def _status_of(channel: grpc.aio.Channel, path: str, metadata: list[tuple[str, str]]) -> str:
    """Return the status of one call; `OK` as soon as it is answered."""
    make: Any = channel.unary_stream(path)
    while True:
        responses = make(b"", metadata=metadata, timeout=_ANSWER_LIMIT_S)
        with suppress(grpc.aio.AioRpcError):
            if await responses.read() is not grpc.aio.EOF:
                responses.cancel()
                return "OK"
        status: str = (await responses.code()).name
        if status == "INTERNAL" and "RST_STREAM" in str(await responses.details()):
            status = _RESET
        # The server may still count calls that have ended, and refuses others unseen.
        if status != "UNAVAILABLE":
            return status
        await asyncio.sleep(0.01)
