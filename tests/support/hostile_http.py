"""Build HTTP requests that cost a server the most for their size, for tests and for `make bench PARTS=hostile`.

Each builder takes `size`, the bytes of the body, about, and returns the path and the body, or with headers. They ask
the embedded models digits (tensor), minilm-onnx (text) and tiny-llama (generation).
"""

import gzip
import itertools
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection

import orjson

_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """A POST. `body` is complete; its length and its coding are what the headers say."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(_JSON))


Builder = Callable[[int], HostileRequest]


def _digits(body: bytes) -> HostileRequest:
    return HostileRequest("/models/digits/infer", body)


def _infer(body: bytes) -> HostileRequest:
    return HostileRequest("/infer", body)


def _repeated(start: bytes, item: bytes, end: bytes, size: int) -> bytes:
    """Return `item` repeated, with commas, between start and end."""
    return start + b",".join(itertools.repeat(item, max(1, size // (len(item) + 1)))) + end


def _members(size: int, of: Callable[[int], bytes], start: bytes = b"{", end: bytes = b"}") -> bytes:
    """Return an object of different members, as many as fit."""
    members: list[bytes] = []
    length = 0
    for number in itertools.count():
        member = of(number)
        length += len(member) + 1
        if length > size:
            break
        members.append(member)
    return start + b",".join(members) + end


def _text(fields: dict[str, object]) -> HostileRequest:
    return HostileRequest("/models/minilm-onnx/infer", orjson.dumps(fields))


def _generation(fields: dict[str, object], path: str = "/models/tiny-llama/infer") -> HostileRequest:
    return HostileRequest(path, orjson.dumps(fields))


def _chat(fields: dict[str, object]) -> HostileRequest:
    messages = {"model": "tiny-llama", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    return HostileRequest("/v1/chat/completions", orjson.dumps(messages | fields))


def _v2(body: bytes) -> HostileRequest:
    return HostileRequest("/v2/models/digits/infer", body)


def _compressed(size: int) -> HostileRequest:
    """Return gzip that inflates to about `size` bytes of spaces."""
    body = gzip.compress(b" " * size + b'{"input_data":[1]}')
    return HostileRequest("/models/digits/infer", body, _JSON | {"content-encoding": "gzip"})


def _binary_strings(size: int) -> HostileRequest:
    """Return a binary BYTES tensor of empty strings."""
    count = size // 4
    head = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": size}}]}
    header = orjson.dumps(head)
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(header))}
    return HostileRequest("/v2/models/digits/infer", header + struct.pack("<I", 0) * count, headers)


def _too_many_texts(size: int) -> int:
    """Return the texts that fit, if they are more than one request may have; else a few: they would be embedded."""
    return size // 4 if size // 4 > 100_000 else 8


def _words(size: int) -> str:
    return "ab " * (size // 3)


HOSTILE_HTTP: dict[str, Builder] = {
    # JSON
    "deep arrays": lambda size: _digits(b'{"input_data":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"),
    "deep objects": lambda size: _digits(b'{"inputs":' + b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6) + b"}"),
    "many fields": lambda size: _infer(_members(size, lambda n: b'"%07x":1' % n)),
    "the same field": lambda size: _infer(_repeated(b"{", b'"version":"1"', b"}", size)),
    "long field name": lambda size: _infer(b'{"' + b"x" * size + b'":1}'),
    "long model name": lambda size: _infer(b'{"model_name":"' + b"x" * size + b'","input_data":[1]}'),
    "long version": lambda size: _digits(b'{"version":"' + b"x" * size + b'","input_data":[1]}'),
    "escaped string": lambda size: _infer(b'{"model_name":"' + b"\\u0041" * (size // 6) + b'"}'),
    "numbers in spaces": lambda size: _digits(b'{"input_data":[1' + b" " * size + b"]}"),
    "unfinished JSON": lambda size: _digits(b'{"input_data":[' + b"1," * (size // 2)),
    # Tensors
    "too many numbers": lambda size: _digits(_repeated(b'{"input_data":[', b"1", b"]}", size)),
    "numbers with many digits": lambda size: _digits(_repeated(b'{"input_data":[', b"0." + b"1" * 60, b"]}", size)),
    "one long number": lambda size: _digits(b'{"input_data":[0.' + b"1" * size + b"]}"),
    "many short arrays": lambda size: _digits(_repeated(b'{"input_data":[', b"[1]", b"]}", size)),
    "arrays of unequal lengths": lambda size: _digits(_repeated(b'{"input_data":[[1,2],', b"[1]", b"]}", size)),
    "many empty arrays": lambda size: _digits(_repeated(b'{"input_data":[', b"[]", b"]}", size)),
    "long shape": lambda size: _digits(_repeated(b'{"inputs":{"x":{"data":[1],"shape":[', b"1", b"]}}}", size)),
    "many inputs": lambda size: _digits(
        _members(size, lambda n: b'"%07x":[1]' % n, b'{"inputs":{', b"}}"),
    ),
    "many outputs": lambda size: _digits(_repeated(b'{"input_data":[1],"outputs":[', b'"a"', b"]}", size)),
    "strings for numbers": lambda size: _digits(_repeated(b'{"input_data":[', b'"a"', b"]}", size)),
    "/v2: empty inputs": lambda size: _v2(_repeated(b'{"inputs":[', b"{}", b"]}", size)),
    "/v2: many parameters": lambda size: _v2(
        _members(size, lambda n: b'"%07x":1' % n, b'{"inputs":[],"parameters":{', b"}}")
    ),
    "/v2: strings of a binary tensor": _binary_strings,
    "gzip": _compressed,
    # Texts
    "one long word": lambda size: _text({"text": "x" * size}),
    "one long text": lambda size: _text({"text": _words(size)}),
    "many texts": lambda size: _text({"text": ["a"] * _too_many_texts(size)}),
    "a long text that may not be cut": lambda size: _text({"text": _words(size), "truncate": False}),
    "many documents": lambda size: HostileRequest(
        "/v1/rerank", orjson.dumps({"model": "minilm-onnx", "query": "a", "documents": ["b"] * _too_many_texts(size)})
    ),
    "token ids as embeddings input": lambda size: HostileRequest(
        "/v1/embeddings", _repeated(b'{"model":"minilm-onnx","input":[', b"1", b"]}", size)
    ),
    "long text to tokenize": lambda size: HostileRequest(
        "/v1/tokenize", orjson.dumps({"model": "tiny-llama", "prompt": _words(size)})
    ),
    "many tokens to detokenize": lambda size: HostileRequest(
        "/v1/detokenize", _repeated(b'{"model":"tiny-llama","tokens":[', b"1", b"]}", size)
    ),
    # Generation
    "long prompt": lambda size: _generation({"prompt": _words(size), "max_tokens": 1}),
    "prompt without a space": lambda size: _generation({"prompt": "x" * size, "max_tokens": 1}),
    "many messages": lambda size: _chat({"messages": [{"role": "user", "content": "a"}] * (size // 35)}),
    "long stop string": lambda size: _chat({"stop": "x" * size}),
    "many stop strings": lambda size: _chat({"stop": [f"{n:05x}" for n in range(size // 8)]}),
    "large logit_bias": lambda size: _chat({"logit_bias": {str(n): 1 for n in range(size // 9)}}),
    "large JSON schema": lambda size: _chat(
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": [f"{n:06x}" for n in range(size // 9)]}},
            }
        }
    ),
    "all log probabilities": lambda size: _chat(
        {"n": 64, "max_tokens": 64, "logprobs": True, "top_logprobs": 20, "user": "x" * (size - 200)}
    ),
}
"""Name → builder. Every request is answered below 500, or with 503 or 507."""


def post(port: int, request: HostileRequest) -> int:
    """Send a request to this machine; return the status, or 0 if the connection was closed without a response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        # A refusal by the head closes the connection before the body is sent; the response may have arrived.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", request.path, request.body, request.headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except OSError:
        return 0
    finally:
        connection.close()
