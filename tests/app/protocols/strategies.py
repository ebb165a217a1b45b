"""Bodies of requests for property tests: any JSON, valid requests, and damaged valid requests."""

import json
from base64 import b64encode
from typing import Any

from hypothesis import strategies as st

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 65520, 3.4e38, 1e39, -0.0, 5e-324]),
)
strings = st.one_of(st.text(max_size=8), st.sampled_from(["[", "]]", '"[', "\\", "{}", "float32", "", "\u0000"]))
base64_texts = st.one_of(
    st.binary(max_size=8).map(lambda file: b64encode(file).decode()),
    st.binary(max_size=8).map(lambda file: f"data:image/png;base64,{b64encode(file).decode()}"),
    strings,
)
"""Files in the forms of JSON, and other texts."""
scalars = st.one_of(st.none(), st.booleans(), numbers, strings)
names = st.one_of(
    st.sampled_from(["data", "shape", "dtype", "x", "s", "y", "a", "b", "c", "input_data", "inputs", "text", "1"]),
    st.text(max_size=5),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
"""A JSON value of bounded size."""


def nests(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested lists; many are ragged."""
    ragged = st.recursive(elements, lambda inner: st.lists(inner, max_size=4), max_leaves=15)
    return st.one_of(ragged, st.lists(st.integers(0, 3), max_size=4).flatmap(lambda shape: _whole(shape, elements)))


def _whole(shape: list[int], elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    node = elements
    for size in reversed(shape):
        node = st.lists(node, min_size=size, max_size=size)
    return node


tensors: st.SearchStrategy[Any] = st.one_of(
    nests(numbers),
    nests(st.integers(-3, 3)),
    nests(st.booleans()),
    nests(strings),
    nests(scalars),
    st.fixed_dictionaries(
        {"data": nests(st.integers(-3, 3) | strings)},
        optional={
            "shape": st.lists(st.integers(0, 4), max_size=4) | st.lists(st.integers(0, 2**45), max_size=5),
            "dtype": st.sampled_from(["float32", "int64", "string", "bool"]),
        },
    ),
)
"""A value in the place of a tensor, valid or not."""

requests: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {"input_data": tensors}, optional={"batch_size": st.integers(-1, 5), "outputs": st.just(["y"])}
    ),
    st.fixed_dictionaries({"inputs": st.dictionaries(st.sampled_from(["x", "s", "a", "b", "c"]), tensors, max_size=3)}),
    st.fixed_dictionaries(
        {"text": strings | st.lists(strings, max_size=3)},
        optional={"normalize": st.booleans(), "truncate": st.booleans(), "top_k": st.integers(-1, 3)},
    ),
    st.fixed_dictionaries(
        {"image": base64_texts | st.lists(base64_texts, max_size=3)},
        optional={"normalize": st.booleans(), "top_k": st.integers(-1, 3), "outputs": st.just(["y"])},
    ),
    st.fixed_dictionaries(
        {"prompt": strings, "max_tokens": st.integers(-1, 20)},
        optional={
            "temperature": st.floats(0, 2) | st.integers(-1, 2),
            "stop": strings | st.lists(strings, max_size=3),
            "logit_bias": st.dictionaries(st.integers(-1, 120).map(str), st.integers(-101, 101), max_size=3),
            "choice": st.lists(strings, max_size=3),
            "json_schema": json_values,
            "stream": st.booleans(),
        },
    ),
    st.fixed_dictionaries(
        {
            "messages": st.lists(st.fixed_dictionaries({"role": strings, "content": strings}), max_size=2),
            "max_tokens": st.integers(-1, 20),
        },
        optional={
            "seed": st.integers(-1, 2**64),
            "n": st.sampled_from([0, 1, 3, 129, 130]),
            "logprobs": st.integers(-1, 21),
        },
    ),
)
"""Requests that a caller may send."""


def mutated(request: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """The request's bytes after a few random edits."""
    body = json.dumps(request).encode()
    positions = st.integers(0, len(body))
    pieces = st.sampled_from([b"", b"[", b"]", b'"', b",", b"{", b"}", b":", b"1", b"\xff", b"\\", b"null", b"e400"])
    edits = st.lists(st.tuples(positions, st.integers(0, 4), pieces), max_size=3)
    return edits.map(lambda several: _edited(body, several))


def _edited(body: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for at, cut, piece in edits:
        body = body[:at] + piece + body[at + cut :]
    return body
