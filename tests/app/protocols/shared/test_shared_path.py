"""A path that two protocols share: the body decides."""

import orjson
import pytest

from app.protocols.openai.scoring import RERANK_CODEC
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.shared_path import SEARCHED_BYTES, SharedPathCodec
from extensions.clients.tei.texts import EMBED_CODEC
from extensions.clients.tei.texts import RERANK_CODEC as TEI_CODEC
from frameworks.types import PairRequest
from tests.app.protocols.openai.decoding import find_spec

CODEC = SharedPathCodec(RERANK_CODEC, TEI_CODEC, "texts")


@pytest.mark.parametrize(
    ("body", "is_tei"),
    [
        (b'{"query": "q", "texts": ["a"]}', True),
        (b'{"texts"\n :["a"],"query":"q"}', True),
        (b'{"query": "q", "documents": ["a"]}', False),
        (b'{"query": "texts", "documents": ["texts"]}', False),
        (orjson.dumps({"query": '"texts": ', "documents": ['"texts":']}), False),
        (b"", False),
        pytest.param(b'{"query": "' + b"q" * SEARCHED_BYTES + b'", "texts": []}', False, id="key beyond the search"),
    ],
)
def test_body_decides_on_codec(body: bytes, is_tei: bool) -> None:
    assert CODEC.for_body(body) is (TEI_CODEC if is_tei else RERANK_CODEC)


@pytest.mark.parametrize("name", ["texts", "documents"])
def test_either_body_is_decoded(name: str) -> None:
    body = orjson.dumps({"model": "embed", "query": "q", name: ["a"]})
    assert CODEC.decode(body, Target(), find_spec).request == PairRequest([("q", "a")])


def test_errors_before_body_are_of_first() -> None:
    error = ErrorReply(413, "too_large", "m")
    assert CODEC.error_body(error, "id") == RERANK_CODEC.error_body(error, "id")


def test_paths_share_several_codecs() -> None:
    codec = SharedPathCodec(CODEC, EMBED_CODEC, "inputs")
    assert codec.for_body(b'{"inputs": "a", "texts": []}') is EMBED_CODEC
    assert codec.for_body(b'{"texts": []}') is TEI_CODEC
    assert codec.for_body(b"{}") is RERANK_CODEC
