"""Record the bodies of requests, and forward them to the server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

ANSWER_WITHIN_S = 60
_HEADERS = ("authorization", "content-type", "x-api-key", "anthropic-version")
_TOKENS = 8
# Texts are short, as the model has random weights. The limit is not recorded.
_LIMITS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"max_tokens": _TOKENS},
    "/v1/completions": {"max_tokens": _TOKENS},
    "/v1/responses": {"max_output_tokens": _TOKENS},
    "/api/chat": {"options": {"num_predict": _TOKENS}},
    "/api/generate": {"options": {"num_predict": _TOKENS}},
}


class Recorded(NamedTuple):
    """A request and the status of its response."""

    path: str
    body: dict[str, Any]
    status: int
    response: bytes


@contextmanager
def recording(url: str) -> Iterator[tuple[str, list[Recorded]]]:
    """Yield the URL of a proxy of the server, and the list of the POST requests that it forwards."""
    recorded: list[Recorded] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*self._forward(None))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            limits = _LIMITS.get(self.path, {})
            own = {name: value for name, value in limits.items() if not body.get(name)}
            status, kind, content = self._forward(json.dumps(body | own).encode())
            recorded.append(Recorded(self.path, body, status, content))
            self._answer(status, kind, content)

        def _forward(self, body: bytes | None) -> tuple[int, str, bytes]:
            headers = {name: self.headers[name] for name in _HEADERS if name in self.headers}
            try:
                with urlopen(Request(url + self.path, body, headers), timeout=ANSWER_WITHIN_S) as answer:
                    return answer.status, answer.headers["content-type"], answer.read()
            except HTTPError as error:
                return error.code, error.headers["content-type"], error.read()

        def _answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", recorded
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
