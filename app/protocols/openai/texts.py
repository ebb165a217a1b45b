"""Texts of a body: of /v1/embeddings, /v1/rerank and /v1/score."""

from typing import Any

from app.protocols.json_body import describe_value
from app.protocols.openai.codec import Fields
from frameworks.errors import InvalidInput

MOST_TEXTS = 100_000


def read_text(value: Any, field: str) -> str:
    """One string. Raises InvalidInput."""
    if not isinstance(value, str):
        given = "is missing" if value is None else f"is {describe_value(value)}"
        raise InvalidInput(field, f"{given}; wants a string")
    return value


def read_texts(value: Any, field: str) -> list[str]:
    """A string or a list of them. Raises InvalidInput."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        given = "is missing" if value is None else f"is {describe_value(value)}"
        raise InvalidInput(field, f"{given}; wants a string or a list of strings")
    if len(value) > MOST_TEXTS:
        raise InvalidInput(field, f"{len(value)} texts; a request takes at most {MOST_TEXTS}, send several")
    if strangers := set(map(type, value)) - {str}:
        at = next(i for i, text in enumerate(value) if type(text) in strangers)
        raise InvalidInput(f"{field}[{at}]", f"is {describe_value(value[at])}; wants a string")
    return value


def read_truncate(fields: Fields) -> bool:
    """Whether a text is cut at the model's limit, which it is unless the body says otherwise."""
    value = fields.get("truncate", True)
    if not isinstance(value, bool):
        raise InvalidInput("truncate", f"is {describe_value(value)}; wants true or false")
    return value
