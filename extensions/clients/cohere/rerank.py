"""/v2/rerank: rank documents by a query."""

from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from app.protocols.shared.fields.texts import check_token_limit
from app.protocols.shared.json.output import list_to_json
from app.protocols.shared.ranking import best_first, check_scores_pairs, rename_pair
from extensions.clients.cohere.codec import CohereCodec, meta
from extensions.clients.cohere.requests import CohereRerankRequest
from frameworks.types import ModelSpec, PairRequest, ScoreAnswer

_POLICY = FieldPolicy(
    {
        "relevant_spans": Refusal("scores are of whole documents: omit the field"),
        "rank_fields": Refusal("a document is one text: put the fields into it"),
        "max_chunks_per_doc": Refusal(
            "a document is scored whole, truncated at the model's limit: send its parts as documents"
        ),
    }
)


def _build(body: CohereRerankRequest, spec: ModelSpec) -> PairRequest:
    check_scores_pairs(spec)
    check_token_limit(body.max_tokens_per_doc, "max_tokens_per_doc", spec)
    return PairRequest([(body.query, document) for document in body.documents])


def _write(decoded: BodyRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    pairs, scores = decoded.request.pairs, answer.scores
    with_documents = bool(decoded.body.return_documents)

    def result(index: int) -> dict[str, Any]:
        document = {"document": {"text": pairs[index][1]}} if with_documents else {}
        return {"index": index, "relevance_score": scores[index], **document}

    return orjson.dumps(
        {
            "id": context.request_id,
            "results": list_to_json(best_first(scores, decoded.body.top_n), result),
            "meta": meta(search_units=1),
            "model": context.model,
            "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
        }
    )


def _rename(field: str) -> str:
    return rename_pair(field, "query", "documents")


RERANK_CODEC = CohereCodec(
    "/v2/rerank", ("embed", "classify"), CohereRerankRequest, _build, _write, _POLICY,
    rename=_rename, kinds=("rerank", "embed"),
)  # fmt: skip
