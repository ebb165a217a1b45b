"""Fields of texts and of their embeddings, shared by all protocols."""

from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field

from app.protocols.shared.bodies import MAX_INT32, got
from app.protocols.shared.fields.generation import TokenId
from frameworks.core.errors import InvalidInput
from frameworks.types import ModelSpec, TextSpec, Truncation

MAX_TEXTS = 100_000
"""Texts in one request to an embed or classify model."""

_MAX_OFFERED_SIZES = 20

Texts = str | Annotated[list[str], Field(max_length=MAX_TEXTS, fail_fast=True)]
TextsOrIds = (
    str
    | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
    | Annotated[
        list[Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]],
        Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True),
    ]
)
Truncate = Annotated[bool | None, Field(description="Truncate texts at the model's limit. Default: true.")]
TruncationSide = Annotated[
    Literal["left", "right"] | None,
    BeforeValidator(lambda side: side.lower() if isinstance(side, str) else side),
    Field(
        description="Side on which a long text is cut, in any case. Default: as the model's files say, else right.",
        json_schema_extra={"anyOf": [{"enum": ["left", "right", "Left", "Right"]}, {"type": "null"}]},
    ),
]
Dimensions = Annotated[
    int | None,
    Field(
        ge=1,
        le=MAX_INT32,
        description="Truncate the vectors to this size and normalise them, where the model supports it.",
    ),
]


def to_texts(texts: str | list[str]) -> list[str]:
    """Return a list also for a single text."""
    return [texts] if isinstance(texts, str) else texts


def texts_or_ids(given: str | list[str] | list[int] | list[list[int]]) -> tuple[list[str], list[list[int]] | None]:
    """Return texts, or the token ids of texts. TextsOrIds accepts no empty list."""
    if isinstance(given, list) and not isinstance(given[0], str):
        is_one_text = isinstance(given[0], int)
        return [], cast("list[list[int]]", [given] if is_one_text else given)
    return to_texts(given), None


def truncation_of(truncate: bool | None, *sides: Literal["left", "right"] | None) -> Truncation:
    """Return how texts are cut. `truncate` None: they are. `sides`: the first one that is given counts."""
    side = next((each for each in sides if each is not None), None)
    return truncate is not False and (side or True)


def rename_text(field: str, name: str) -> str:
    """Return the field of a text, as `text[3]`, as the body names it."""
    return name + field[len("text") :] if field == "text" or field.startswith("text[") else field


def check_token_limit(num_tokens: int | None, field: str, spec: ModelSpec) -> None:
    """Raise InvalidInput for a length of texts below that of the model. None, 0 and -1 ask for that of the model."""
    limit = spec.max_tokens
    if num_tokens is not None and limit is not None and 0 < num_tokens < limit:
        raise InvalidInput(
            field, f"expected {limit} or more, got {num_tokens}; texts are cut at the model's limit only"
        )


def is_multi(spec: ModelSpec) -> bool:
    """Whether the model computes a vector for each token of a text."""
    return spec.text is not None and spec.text.vectors == "multi"


def check_input_type(spec: ModelSpec, given: str) -> None:
    """Raise InvalidInput for a model that reads all texts in one way. `given`: that of the request."""
    if spec.text is not None and spec.text.are_queries and given != "query":
        raise InvalidInput(
            "input_type", f'expected "query", as the documents of this model are images, got "{given}"; send images'
        )
    if not is_multi(spec) and not (spec.text is not None and spec.text.has_sides):
        raise InvalidInput(
            "input_type",
            "expected a model that reads queries otherwise than documents, got another; "
            "put the prompt of the type before each text",
        )


def read_function_to_apply(value: object, spec: ModelSpec, field: str) -> bool:
    """Return whether logits are asked for. `value`: the function that makes scores of them.

    Raises InvalidInput for a function that the model does not have.
    """
    is_multi_label = any(each is not None and each.multi_label for each in (spec.text, spec.image))
    own = "sigmoid" if is_multi_label else "softmax"
    if value not in ("none", own):
        raise InvalidInput(
            field,
            f'expected "none" or "{own}", which the files of the model say, got {got(value)}; leave it out',
        )
    return value == "none"


def check_dimensions(dimensions: int | None, text: TextSpec) -> int | None:
    """Return the size to truncate vectors to, None for whole vectors. Raises InvalidInput for an unsupported size."""
    size, shorter = text.embedding_size, text.shorter_sizes
    if dimensions is None or dimensions == size:
        return None
    if dimensions in shorter:
        return dimensions
    if not shorter:
        expected = f"{size}, the size of this model's vectors" if size else "nothing"
        raise InvalidInput("dimensions", f"expected {expected}, got {dimensions}; omit the field")
    if len(shorter) <= _MAX_OFFERED_SIZES:
        raise InvalidInput("dimensions", f"expected one of {', '.join(map(str, (*shorter, size)))}, got {dimensions}")
    raise InvalidInput("dimensions", f"expected a size from {shorter[0]} to {shorter[-1]}, got {dimensions}")
