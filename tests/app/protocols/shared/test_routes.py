"""Find the codec of a path, and the protocol that writes the errors of a path."""

from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from app.auth.permissions import INFER, READ, HttpAccess
from app.protocols.native.codec import NativeCodec
from app.protocols.native.routes import ROUTES
from app.protocols.openai.scoring import RERANK_CODEC
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.routes import (
    SEARCHED_BYTES,
    NotImported,
    Route,
    RouteDescription,
    RouteTable,
    SharedPathCodec,
)
from extensions.clients.tei.texts import EMBED_CODEC
from extensions.clients.tei.texts import RERANK_CODEC as TEI_CODEC
from frameworks.types import PairRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.openai.decoding import find_spec


class Other(NativeCodec):
    """Another protocol with other error bodies."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return b"other"


class Nothing(BaseModel):
    pass


OTHER = Other()
TEXT = RouteDescription("other", "Other", Nothing, Nothing, Nothing)
TABLE = RouteTable(
    [*ROUTES, *(Route(path, OTHER, TEXT) for path in ("/v9/ask", "/v9/ask/{version}", "/v9/{name}/answers"))]
)
NATIVE = ROUTES[0].codec


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/infer", (NATIVE, Target())),
        ("/inference", (NATIVE, Target())),
        ("/models/a/infer", (NATIVE, Target("a"))),
        ("/models/org/a/infer", (NATIVE, Target("org/a"))),
        ("/models/org/a/versions/2/infer", (NATIVE, Target("org/a", "2"))),
        ("/infer/", (NATIVE, Target())),
        ("/models/a/infer/", (NATIVE, Target("a"))),
        ("/models/infer/infer", (NATIVE, Target("infer"))),
        ("/models/a/versions/2/infer", (NATIVE, Target("a", "2"))),
        ("/v9/ask", (OTHER, Target())),
        ("/v9/ask/2", (OTHER, Target(None, "2"))),
        ("/v9/a/answers", (OTHER, Target("a"))),
        ("/v9/ask/answers", (OTHER, Target(None, "answers"))),
        *((path, None) for path in ("", "/", "infer", "//infer", "/infer//", "/models/infer", "/models//infer")),
        *((path, None) for path in ("/models/a/b/c/infer", "/models/a/load/infer", "/models/../a/infer")),
        *((path, None) for path in ("/models/a/infer//", "/models/a/versions//infer", "/models/{name}", "/v9/a/b")),
    ],
)
def test_find_resolves_paths(path: str, resolved: Any) -> None:
    found = TABLE.find(path)
    assert (None if found is None else (found.codec, found.target)) == resolved
    assert TABLE.find(path) is TABLE.find(path)


@pytest.mark.parametrize("path", ["/v9/ask", "/v9", "/v9/", "/v9/nothing/at/all"])
def test_error_codec_belongs_to_first_part(path: str) -> None:
    assert TABLE.error_codec(path).error_body(ErrorReply(404, "not_found", "m"), "id") == b"other"


@pytest.mark.parametrize("path", ["/infer", "/models/a", "/nothing", "", "/", "v9/ask", "/v99"])
def test_error_codec_of_other_paths_is_native(path: str) -> None:
    assert (
        TABLE.error_codec(path)
        .error_body(ErrorReply(404, "not_found", "m"), "id")
        .startswith(b'{"error":{"code":"not_found"')
    )


class TestSharedPaths:
    """Paths whose first part belongs to another protocol, and paths that the admin application shares."""

    TABLE = RouteTable([*ROUTES, Route("/", OTHER, TEXT, frozenset({"GET"})), Route("/models/ask", OTHER, TEXT)])

    def test_root_is_a_path(self) -> None:
        found = self.TABLE.find("/")
        assert found is not None
        assert found.codec is OTHER
        assert found.others == {"GET"}
        assert found.allowed == "GET, POST"
        assert self.TABLE.find("") is None

    @pytest.mark.parametrize("path", ["/models/ask", "/models/ask/"])
    def test_route_writes_its_errors(self, path: str) -> None:
        assert self.TABLE.error_codec(path).error_body(ErrorReply(404, "not_found", "m"), "id") == b"other"

    @pytest.mark.parametrize("path", ["/", "", "/models/asked", "/models"])
    def test_other_paths_keep_their_writer(self, path: str) -> None:
        assert self.TABLE.error_codec(path).error_body(ErrorReply(404, "not_found", "m"), "id") != b"other"


class TestOtherRoutes:
    """Routes that are imported when a request needs one. Those of the admin application import none."""

    ACCESS = HttpAccess(
        {
            "/infer": {"POST": INFER},
            "/v9/ask": {"POST": INFER, "GET": READ},
            "/v9/{name}/answers": {"POST": INFER},
            "/v9/status": {"GET": READ},
            "/infer/other": {"POST": INFER},
        }
    )
    OTHERS = tuple(Route(path, OTHER, TEXT) for path in ("/v9/ask", "/v9/{name}/answers", "/infer/other"))

    def table(self) -> tuple[RouteTable, list[int]]:
        """Return a table, and a list that has an element for each import."""
        imports: list[int] = []

        def others() -> tuple[Route, ...]:
            imports.append(1)
            return self.OTHERS

        return RouteTable(ROUTES, self.ACCESS, others), imports

    @pytest.mark.parametrize("path", ["/infer", "/models/a/infer", "/v9/status", "/nothing", "/v9", ""])
    def test_other_paths_import_nothing(self, path: str) -> None:
        table, imports = self.table()
        assert (table.find(path) is None) == ("infer" not in path)
        table.error_codec("/infer")
        assert not imports

    @pytest.mark.parametrize("path", ["/v9/ask", "/v9/ask/", "/v9/a/answers"])
    def test_route_is_found_after_its_import(self, path: str) -> None:
        table, imports = self.table()
        with pytest.raises(NotImported):
            table.find(path)
        table.import_others()
        table.import_others()
        found = table.find(path)
        assert found is not None
        assert found.codec is OTHER
        assert imports == [1]
        assert table.find("/nothing") is None

    @pytest.mark.parametrize("path", ["/v9/ask", "/v9/status", "/v9", "/infer/other"])
    def test_errors_have_form_of_other_protocol(self, path: str) -> None:
        table, imports = self.table()
        assert table.error_codec(path) is OTHER
        assert imports == [1]

    def test_list_of_routes_is_whole(self) -> None:
        table, _ = self.table()
        assert table.routes == (*ROUTES, *self.OTHERS)


SHARED = SharedPathCodec(RERANK_CODEC, TEI_CODEC, "texts")


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
    assert SHARED.for_body(body) is (TEI_CODEC if is_tei else RERANK_CODEC)


@pytest.mark.parametrize("name", ["texts", "documents"])
def test_either_body_is_decoded(name: str) -> None:
    body = orjson.dumps({"model": "embed", "query": "q", name: ["a"]})
    assert decode_body(SHARED, body, Target(), find_spec).request == PairRequest([("q", "a")])


def test_errors_before_body_are_of_first() -> None:
    error = ErrorReply(413, "too_large", "m")
    assert SHARED.error_body(error, "id") == RERANK_CODEC.error_body(error, "id")


def test_paths_share_several_codecs() -> None:
    codec = SharedPathCodec(SHARED, EMBED_CODEC, "inputs")
    assert codec.for_body(b'{"inputs": "a", "texts": []}') is EMBED_CODEC
    assert codec.for_body(b'{"texts": []}') is TEI_CODEC
    assert codec.for_body(b"{}") is RERANK_CODEC
