"""Request bodies of Cohere's API. Each class validates its body, and OpenAPI shows its schema."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32, Body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.images import MAX_IMAGES
from app.protocols.shared.fields.texts import MAX_TEXTS, Dimensions

_SomeTexts = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
_MAX_PARTS = 1024


class EmbedPart(Body):
    """A text of an input."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "text", "text": "…"}]})

    type: Literal["text"]
    text: str


class EmbedImageUrl(Body):
    """A file as a data URL. No other URL is accepted."""

    url: str
    detail: Any = Field(None, description="Accepted without effect.")


class EmbedImagePart(Body):
    """An image, the only part of its input."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}}]}
    )

    type: Literal["image_url"]
    image_url: EmbedImageUrl


class EmbedInput(Body):
    """An input: texts, which are joined by line breaks, or one image."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": [{"type": "text", "text": "…"}]}]})

    content: Annotated[
        list[Annotated[EmbedPart | EmbedImagePart, Field(discriminator="type")]],
        Field(min_length=1, max_length=_MAX_PARTS, fail_fast=True),
    ]


class CohereEmbedRequest(RequestBody):
    """Texts or images to embed: `texts`, `images` or `inputs`."""

    texts: _SomeTexts | None = None
    images: Annotated[list[str], Field(min_length=1, max_length=MAX_IMAGES, fail_fast=True)] | None = Field(
        None, description="Data URLs or base64, for models that read images."
    )
    inputs: Annotated[list[EmbedInput], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)] | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = Field(
        None, description="Put the prompt before the texts that the model's files have for this type. image: of images."
    )
    embedding_types: (
        Annotated[list[Literal["float", "base64", "binary", "ubinary"]], Field(min_length=1, max_length=8)] | None
    ) = Field(None, description="Forms of the vectors. Default: float.")
    output_dimension: Dimensions = None
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description="At least the model's limit, which is the only one."
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description="Part of a long text that is cut; NONE: refuse texts beyond the model's limit. Default: as the "
        "model's files say, else END.",
    )


class CohereRerankRequest(RequestBody):
    """Documents to rank by their relevance to a query."""

    query: str
    documents: Annotated[list[str], Field(max_length=MAX_TEXTS, fail_fast=True)]
    top_n: int | None = Field(None, ge=0, le=MAX_INT32, description="Number of best documents. Default, and 0: all.")
    max_tokens_per_doc: int | None = Field(
        None, ge=0, le=MAX_INT32, description="0, or at least the model's limit, which is the only one."
    )
    return_documents: bool | None = Field(False, description="Repeat the documents in the response.")
