"""/v1/rerank and /v1/score: score pairs of texts by a cross-encoder, or by the cosine of an embed model's vectors.

/v1/rerank has images as documents, too.
"""

from collections.abc import Sequence

import orjson

from app.inference.unnamed_model import Kind
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import RERANK, SCORE
from app.protocols.openai.requests import ImageDocument, PairsBody, RerankDocument, RerankRequest, ScoreRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.images import check_num_images, decode_image
from app.protocols.shared.fields.texts import check_token_limit, to_texts
from app.protocols.shared.ranking import best_first, check_scores_pairs, rename_pair
from frameworks.core.errors import InvalidInput
from frameworks.engine.text_answers import PAIR_FIELD
from frameworks.types import ImagePairRequest, ModelSpec, PairRequest, ScoreAnswer

_SIDES = (
    ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")
)  # fmt: skip


def _build_rerank(body: RerankRequest, spec: ModelSpec) -> PairRequest | ImagePairRequest:
    _check(body, spec)
    if body.top_n and body.top_k not in (None, 0, body.top_n):
        raise InvalidInput("top_k", f"expected {body.top_n}, as top_n, got {body.top_k}; send one of them")
    documents = [body.documents] if isinstance(body.documents, str) else body.documents
    images = _read_images(documents, spec)
    if images:
        return ImagePairRequest(body.query, images, body.truncates)
    pairs = [(body.query, _text_of(each)) for each in documents]
    return PairRequest(pairs, body.truncates, body.raw)


def _text_of(document: str | RerankDocument | ImageDocument) -> str:
    assert not isinstance(document, ImageDocument)
    return document if isinstance(document, str) else document.text


def _read_images(documents: Sequence[str | RerankDocument | ImageDocument], spec: ModelSpec) -> list[bytes]:
    """Return the files of documents that are images; none where all are texts. Raises InvalidInput."""
    images = [(index, each.image) for index, each in enumerate(documents) if isinstance(each, ImageDocument)]
    if not images:
        return []
    if spec.text is None or spec.image is None or spec.task != "embed":
        raise InvalidInput(
            "documents", f"expected texts, as this model scores no images, got {len(images)} images; send texts"
        )
    if len(images) != len(documents):
        raise InvalidInput(
            "documents",
            f"expected documents of one kind, got {len(images)} images and {len(documents) - len(images)} texts; "
            "split the request",
        )
    check_num_images(len(images), "documents")
    return [decode_image(image, f"documents[{index}].image") for index, image in images]


def _build_score(body: ScoreRequest, spec: ModelSpec) -> PairRequest:
    _check(body, spec)
    first_field, second_field = _sides_of(body)
    first, second = getattr(body, first_field), getattr(body, second_field)
    for field, texts in ((first_field, first), (second_field, second)):
        if texts is None:
            raise InvalidInput(field, "expected a string or a list of strings, got nothing")
    seconds = to_texts(second)
    # One text is paired with each text of the other side.
    firsts = [first] * len(seconds) if isinstance(first, str) else first
    if len(firsts) != len(seconds):
        raise InvalidInput(
            second_field,
            f"expected {len(firsts)} texts, as in {first_field}, got {len(seconds)}; or send a string as {first_field}",
        )
    return PairRequest(list(zip(firsts, seconds, strict=True)), body.truncates, body.raw)


def _sides_of(body: ScoreRequest) -> tuple[str, str]:
    """Return the names of both sides as the body has them. Raises InvalidInput for a mixture."""
    given = {name for sides in _SIDES for name in sides if getattr(body, name) is not None}
    for sides in _SIDES:
        if given <= set(sides):
            return sides
    first, second = next(sides for sides in _SIDES if not given.isdisjoint(sides))
    other = min(given - {first, second})
    raise InvalidInput(other, f"expected nothing with {first} and {second}, got texts; send one pair of fields")


def _check(body: PairsBody, spec: ModelSpec) -> None:
    check_scores_pairs(spec)
    check_token_limit(body.truncate_prompt_tokens, "truncate_prompt_tokens", spec)
    check_token_limit(body.max_tokens_per_doc, "max_tokens_per_doc", spec)
    check_token_limit(body.max_tokens_per_query, "max_tokens_per_query", spec)


def _write_rerank(decoded: OpenAiRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    body: RerankRequest = decoded.body
    results = []
    for index in best_first(answer.scores, body.top_n or body.top_k):
        document = {"document": _document(body, index)} if body.return_documents else {}
        results.append({"index": index, "relevance_score": answer.scores[index], **document})
    return orjson.dumps(
        {
            "id": f"rerank-{context.request_id}",
            "model": context.model,
            "usage": _usage(answer),
            "results": results,
        }
    )


def _document(body: RerankRequest, index: int) -> dict[str, str]:
    """Return a document as the response repeats it."""
    documents = [body.documents] if isinstance(body.documents, str) else body.documents
    document = documents[index]
    return {"image": document.image} if isinstance(document, ImageDocument) else {"text": _text_of(document)}


def _write_score(decoded: OpenAiRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(
        {
            "id": f"score-{context.request_id}",
            "object": "list",
            "created": context.created_s,
            "model": context.model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(answer.scores)],
            "usage": _usage(answer),
        }
    )


def _usage(answer: ScoreAnswer) -> dict[str, int]:
    return {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}


def _rename_in_rerank(field: str) -> str:
    if field == "text[0]":  # of a request with images
        return "query"
    if field.startswith("image"):
        return "documents" + field.removeprefix("image")
    return rename_pair(field, "query", "documents")


def _rename_in_score(field: str) -> str:
    pair = PAIR_FIELD.fullmatch(field)
    if pair is None:
        return field
    return f"text_1[{pair['pair']}]" if pair["side"] == "0" else f"text_2[{pair['pair']}]"


_KINDS: tuple[Kind, ...] = ("rerank", "embed")

RERANK_CODEC = OpenAiCodec(
    "/v1/rerank", ("embed", "classify"), RerankRequest, _build_rerank, _write_rerank, RERANK,
    rename=_rename_in_rerank, kinds=_KINDS,
)  # fmt: skip
SCORE_CODEC = OpenAiCodec(
    "/v1/score", ("embed", "classify"), ScoreRequest, _build_score, _write_score, SCORE,
    rename=_rename_in_score, kinds=_KINDS,
)  # fmt: skip
