"""/tokenize with `inputs`: the tokens of texts, and where they are."""

from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.texts import rename_text, to_texts
from app.protocols.shared.json.output import list_to_json
from extensions.clients.tei.codec import POLICY, TeiCodec
from extensions.clients.tei.requests import TeiTokenizeRequest
from frameworks.text.tokens import SpansAnswer, SpansRequest
from frameworks.types import ModelSpec


def _build(body: TeiTokenizeRequest, spec: ModelSpec) -> SpansRequest:
    return SpansRequest(tuple(to_texts(body.inputs)), body.add_special_tokens is not False)


def _write(decoded: BodyRequest, answer: SpansAnswer, context: AnswerContext) -> bytes:
    rows = zip(decoded.request.texts, answer.token_ids, answer.strings, answer.spans, strict=True)
    return orjson.dumps([list_to_json(list(zip(*row, strict=True)), _token_of(text)) for text, *row in rows])


def _token_of(text: str) -> Any:
    def describe(token: tuple[int, str, tuple[int, int] | None]) -> dict[str, Any]:
        token_id, string, span = token
        if span is None:
            return {"id": token_id, "text": string, "special": True, "start": None, "stop": None}
        start, stop = span
        return {"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop}

    return describe


def _rename(field: str) -> str:
    return rename_text(field, "inputs")


TOKENIZE_CODEC = TeiCodec(
    "/tokenize", ("embed", "classify"), TeiTokenizeRequest, _build, _write,
    POLICY, rename=_rename,
)  # fmt: skip
