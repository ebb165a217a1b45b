"""/v1/rerank and /v1/score: how well texts suit a text, by cross-encoders and by embed models' cosine."""

from dataclasses import dataclass
from typing import Any

import orjson

from app.inference.scoring import PAIR_FIELD
from app.protocols.codec import AnswerContext
from app.protocols.generation_fields import read_flag, read_whole
from app.protocols.json_body import describe_value
from app.protocols.openai.codec import Asked, Fields, OpenAiCodec, Question
from app.protocols.openai.field_policy import RERANK, SCORE
from app.protocols.openai.texts import MOST_TEXTS, read_text, read_texts, read_truncate
from frameworks.errors import InvalidInput
from frameworks.types import ModelSpec, PairRequest, ScoreAnswer

# Names of the two sides of /v1/score: the one that may be a single text for all of the other's comes first.
_SIDES = (("text_1", "text_2"), ("queries", "documents"))


@dataclass(frozen=True, slots=True)
class _Ranking:
    """How the answer of /v1/rerank is written. `top_n` None: every document."""

    documents: list[str]
    top_n: int | None
    return_documents: bool


def _read_rerank(fields: Fields, spec: ModelSpec) -> Asked:
    _check_scores(spec, fields)
    query = read_text(fields.get("query"), "query")
    documents = read_texts(_plain_documents(fields.get("documents")), "documents")
    form = _Ranking(documents, read_whole(fields, "top_n", 1, 2**31 - 1), read_flag(fields, "return_documents"))
    return Asked(PairRequest([(query, document) for document in documents], read_truncate(fields)), form=form)


def _read_score(fields: Fields, spec: ModelSpec) -> Asked:
    _check_scores(spec, fields)
    one, other = next((sides for sides in _SIDES if any(side in fields for side in sides)), _SIDES[0])
    for side in (side for sides in _SIDES if sides != (one, other) for side in sides):
        if side in fields:
            raise InvalidInput(side, f"does not go with {one} and {other}; send one pair of them")
    firsts, seconds = read_texts(fields.get(one), one), read_texts(fields.get(other), other)
    if len(firsts) == 1 and isinstance(fields[one], str):
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise InvalidInput(
            other, f"has {len(seconds)} texts, and {one} has {len(firsts)}; send as many, or a string as {one}"
        )
    return Asked(PairRequest(list(zip(firsts, seconds, strict=True)), read_truncate(fields)))


def _check_scores(spec: ModelSpec, fields: Fields) -> None:
    labels = len(spec.text.labels) if spec.text else 0
    if spec.task == "classify" and labels != 1:
        raise InvalidInput(
            "model", f'"{fields.get("model")}" has {labels} labels; a cross-encoder, which scores pairs, has one'
        )


def _plain_documents(documents: Any) -> Any:
    """Cohere's and Jina's documents may be objects with a `text`."""
    if not isinstance(documents, list) or len(documents) > MOST_TEXTS:
        return documents
    plain = []
    for at, document in enumerate(documents):
        if isinstance(document, dict):
            if document.keys() != {"text"}:
                raise InvalidInput(f"documents[{at}]", 'wants a string, or {"text": "…"} with no other member')
            if not isinstance(document["text"], str):
                raise InvalidInput(f"documents[{at}].text", f"is {describe_value(document['text'])}; wants a string")
        plain.append(document["text"] if isinstance(document, dict) else document)
    return plain


def _write_rerank(question: Question, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    form: _Ranking = question.form
    # Equal scores in the order of the documents.
    best_first = sorted(range(len(answer.scores)), key=lambda index: -answer.scores[index])
    results = []
    for index in best_first[: form.top_n]:
        document = {"document": {"text": form.documents[index]}} if form.return_documents else {}
        results.append({"index": index, "relevance_score": answer.scores[index], **document})
    return orjson.dumps(
        {
            "id": f"rerank-{context.request_id}",
            "model": context.model,
            "usage": _usage(answer),
            "results": results,
        }
    )


def _write_score(question: Question, answer: ScoreAnswer, context: AnswerContext) -> bytes:
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


def _name_in_rerank(field: str) -> str:
    pair = PAIR_FIELD.fullmatch(field)
    if pair is None:
        return field
    return "query" if pair["side"] == "0" else f"documents[{pair['pair']}]"


def _name_in_score(field: str) -> str:
    pair = PAIR_FIELD.fullmatch(field)
    if pair is None:
        return field
    return f"text_1[{pair['pair']}]" if pair["side"] == "0" else f"text_2[{pair['pair']}]"


RERANK_FORMAT = OpenAiCodec(
    "/v1/rerank", ("embed", "classify"), RERANK, _read_rerank, _write_rerank, own_name=_name_in_rerank
)
SCORE_FORMAT = OpenAiCodec(
    "/v1/score", ("embed", "classify"), SCORE, _read_score, _write_score, own_name=_name_in_score
)
