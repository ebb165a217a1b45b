"""What the OpenAPI document says of the OpenAI API agrees with what is read."""

import pytest
from pydantic import BaseModel

from app.protocols.openai import schemas
from app.protocols.openai.chat import CHAT_FORMAT
from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.completions import COMPLETIONS_FORMAT
from app.protocols.openai.embeddings import EMBEDDINGS_FORMAT
from app.protocols.openai.field_policy import COMMON_FIELDS
from app.protocols.openai.scoring import RERANK_FORMAT, SCORE_FORMAT
from app.protocols.openai.tokens import DETOKENIZE_FORMAT, TOKENIZE_FORMAT


@pytest.mark.parametrize(
    ("codec", "schema"),
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
def test_a_question_has_the_fields_that_do_what_they_say(codec: OpenAiCodec, schema: type[BaseModel]) -> None:
    vocabulary = codec.vocabulary
    assert schema.model_fields.keys() == COMMON_FIELDS | vocabulary.honoured | vocabulary.labels


@pytest.mark.parametrize("codec", [COMPLETIONS_FORMAT, CHAT_FORMAT, RERANK_FORMAT, TOKENIZE_FORMAT])
def test_no_field_is_in_two_tables(codec: OpenAiCodec) -> None:
    vocabulary = codec.vocabulary
    assert not (vocabulary.honoured | vocabulary.labels) & vocabulary.remedies.keys()
    assert vocabulary.neutral.keys() <= vocabulary.remedies.keys()
