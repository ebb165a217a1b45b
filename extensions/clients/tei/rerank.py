"""/rerank with `texts`: rank texts by a query."""

from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.texts import truncation_of
from app.protocols.shared.json.output import list_to_json
from app.protocols.shared.ranking import best_first, check_scores_pairs, rename_pair
from extensions.clients.tei.codec import POLICY, TeiCodec
from extensions.clients.tei.requests import TeiRerankRequest
from frameworks.types import ModelSpec, PairRequest, ScoreAnswer


def _build(body: TeiRerankRequest, spec: ModelSpec) -> PairRequest:
    check_scores_pairs(spec)
    truncate = truncation_of(body.truncate, body.truncation_direction)
    return PairRequest([(body.query, text) for text in body.texts], truncate, bool(body.raw_scores))


def _write(decoded: BodyRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    pairs, scores = decoded.request.pairs, answer.scores
    with_text = bool(decoded.body.return_text)

    def rank(index: int) -> dict[str, Any]:
        text = {"text": pairs[index][1]} if with_text else {}
        return {"index": index, **text, "score": scores[index]}

    return orjson.dumps(list_to_json(best_first(scores, decoded.body.top_n), rank))


def _rename(field: str) -> str:
    return rename_pair(field, "query", "texts")


RERANK_CODEC = TeiCodec(
    "/rerank",
    ("embed", "classify"),
    TeiRerankRequest,
    _build,
    _write,
    POLICY,
    rename=_rename,
    kinds=("rerank", "embed"),
)
