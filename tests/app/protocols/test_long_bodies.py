"""Which bodies are read in pieces, with the blocks of a server."""

import pytest

from app.protocols.shared.json.long_documents import LongDocument
from app.protocols.shared.json.reading import parse_body


@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        (b'{"x":[' + b"0.123456789," * 150_000 + b"1]}", False),
        (b'{"x":[' + b"1," * 300_000 + b"1]}", True),
        (b'{"x":"' + b"a" * 1_000_000 + b'","y":[' + b"1," * 500_000 + b"1]}", True),
        (b'{"x":[' + b"1," * 120_000 + b"1]}", False),
        (b'{"x":{' + b'"000000":1,' * 40_000 + b'"a":1}}', True),
        (b'{"x":"' + b"a" * 4_000_000 + b'"}', True),
    ],
    ids=["an image", "dense", "dense in part", "short", "many members", "very long"],
)
def test_long_bodies_are_read_in_pieces(body: bytes, is_long: bool) -> None:
    assert isinstance(parse_body(body), LongDocument) == is_long
