"""What the OpenAPI document says of the OpenAI API agrees with what is read."""

import pytest
from pydantic import BaseModel

from app.api.openai import schemas
from app.api.openai.chat import CHAT_FORMAT
from app.api.openai.completions import COMPLETIONS_FORMAT
from app.api.openai.embeddings import EMBEDDINGS_FORMAT
from app.api.openai.format import OpenAiFormat
from app.api.openai.scoring import RERANK_FORMAT, SCORE_FORMAT
from app.api.openai.tokens import DETOKENIZE_FORMAT, TOKENIZE_FORMAT
from app.api.openai.vocabulary import COMMON_FIELDS


@pytest.mark.parametrize(
    ("wire_format", "schema"),
    [
        (COMPLETIONS_FORMAT, schemas.CompletionsRequest),
        (CHAT_FORMAT, schemas.ChatRequest),
        (EMBEDDINGS_FORMAT, schemas.EmbeddingsRequest),
        (RERANK_FORMAT, schemas.RerankRequest),
        (SCORE_FORMAT, schemas.ScoreRequest),
        (TOKENIZE_FORMAT, schemas.TokenizeRequest),
        (DETOKENIZE_FORMAT, schemas.DetokenizeRequest),
    ],
)
def test_a_question_has_the_fields_that_do_what_they_say(wire_format: OpenAiFormat, schema: type[BaseModel]) -> None:
    vocabulary = wire_format.vocabulary
    assert schema.model_fields.keys() == COMMON_FIELDS | vocabulary.honoured | vocabulary.labels


@pytest.mark.parametrize("wire_format", [COMPLETIONS_FORMAT, CHAT_FORMAT, RERANK_FORMAT, TOKENIZE_FORMAT])
def test_no_field_is_in_two_tables(wire_format: OpenAiFormat) -> None:
    vocabulary = wire_format.vocabulary
    assert not (vocabulary.honoured | vocabulary.labels) & vocabulary.remedies.keys()
    assert vocabulary.neutral.keys() <= vocabulary.remedies.keys()
