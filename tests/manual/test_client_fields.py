"""The tables of docs/client-fields.md say what becomes of each field: every row is sent to the codec of its route."""

import re
from typing import Any, NamedTuple

import orjson
import pytest

from app.inference.unnamed_model import UnnamedModel
from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import Target
from app.server.build import build_routes
from frameworks.core.errors import RoundhouseError
from frameworks.types import ModelSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS as TENSOR_SPECS
from tests.app.protocols.openai.decoding import SPECS
from tests.manual.pages import ROOT

PAGE = (ROOT / "docs" / "client-fields.md").read_text(encoding="utf-8")
TABLE = build_routes()
TABLE.import_others()
_USER = [{"role": "user", "content": "a"}]
_RANKED = {"model": "cross-encoder", "query": "q"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "caller", "messages": _USER},
    "/v1/completions": {"model": "llama", "prompt": "a"},
    "/v1/responses": {"model": "caller", "input": "a"},
    "/v1/embeddings": {"model": "embed", "input": "a"},
    "/v1/rerank": {**_RANKED, "documents": ["a"]},
    "/v1/classify": {"model": "classify", "input": "a"},
    "/v1/audio/speech": {"model": "voices", "input": "a", "voice": "0"},
    "/v1/messages": {"model": "caller", "messages": _USER, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "caller", "messages": _USER},
    "/api/chat": {"model": "caller", "messages": _USER},
    "/api/generate": {"model": "caller", "prompt": "a"},
    "/api/embed": {"model": "embed", "input": "a"},
    "/api/embeddings": {"model": "embed", "prompt": "a"},
    "/generate": {"model": "llama", "inputs": "a"},
    "/embed": {"model": "embed-prompts", "inputs": "a"},
    "/rerank": {**_RANKED, "texts": ["a"]},
    "/predict": {"model": "classify", "inputs": "a"},
    "/": {"model": "embed-prompts", "inputs": "a"},
    "/v2/embed": {"model": "embed", "texts": ["a"], "input_type": "search_query"},
    "/v2/rerank": {**_RANKED, "documents": ["a"]},
    "/v2/models/{name}/infer": {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]},
    "/v1/models/{name}:predict": {"instances": [[1, 2, 3]]},
}
"""By route, a body without further fields."""
_STREAM = {"stream": True}
# Fields that a field needs.
_NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/chat/completions", "stream_options"): _STREAM,
    ("/v1/chat/completions", "top_logprobs"): {"logprobs": True},
    ("/v1/chat/completions", "tool_choice"): {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ("/v1/completions", "stream_options"): _STREAM,
    ("/v1/responses", "stream_options"): _STREAM,
    ("/v1/responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]},
    ("/api/generate", "suffix"): {"model": "coder"},
    ("/v1/completions", "suffix"): {"model": "coder"},
    ("/v1/completions", "echo"): {"logprobs": 1},
    ("/", "stream"): {"model": "llama"},
    ("/", "parameters.top_k"): {"model": "classify"},
    ("/", "parameters.function_to_apply"): {"model": "classify"},
}


class Row(NamedTuple):
    """A row of a table. `field`: with a dot, a member of an object."""

    path: str
    field: str
    value: Any
    outcome: str


def rows() -> list[Row]:
    """Return the rows of all tables."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        path = re.search(r"`POST (\S+)`", section)
        for line in section.splitlines():
            if path is not None and line.startswith("| `"):
                field, value, _, outcome = (cell.strip() for cell in line.strip("|").split(" | "))
                found.append(Row(path[1], field.strip("` "), orjson.loads(value.strip("`")), outcome))
    return found


def find_spec(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
    assert isinstance(name, str)
    return TENSOR_SPECS["matrix"] if name == "matrix" else SPECS[name]


def decode(path: str, body: dict[str, Any]) -> Any:
    resolved = TABLE.find(path.replace("{name}", "matrix"))
    assert resolved is not None
    return decode_body(resolved.codec, orjson.dumps(body), resolved.target or Target(), find_spec)


def body_with(row: Row) -> dict[str, Any]:
    needed = _NEEDED.get((row.path, row.field), {})
    name, _, member = row.field.partition(".")
    return {**BASES[row.path], **needed, name: {member: row.value} if member else row.value}


def outcome(row: Row) -> str:
    """Return what becomes of the field, as the tables say it."""
    try:
        decoded = decode(row.path, body_with(row))
    except RoundhouseError as error:
        return "refused: " + str(error).rpartition("; ")[2]
    plain = decode(row.path, BASES[row.path])
    if not isinstance(decoded, BodyRequest):
        # Arrays are not equal as a whole.
        return "no effect" if repr(decoded) == repr(plain) else "served"
    if any(row.field == name or name.startswith(f"{row.field}.") for name in decoded.ignored):
        return "ignored"
    is_same = (decoded.request, decoded.stream) == (plain.request, plain.stream)
    return "no effect" if is_same else "served"


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.path}-{row.field}")
def test_field_has_outcome_of_table(row: Row) -> None:
    found = outcome(row)
    # A value that is the default has its meaning, and changes nothing.
    assert row.outcome in ((found, "served") if found == "no effect" else (found,))


def test_tables_have_every_route_of_clients() -> None:
    assert {row.path for row in rows()} == BASES.keys()
