"""Conversations of a run: a column of messages, or a column of prompts beside one of images."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from app.protocols.shared.json.body import describe_type
from extensions.offline.columns import UNREADABLE, is_text, to_value
from extensions.offline.contract import RowRequest, RunModelDescription, UnreadableRow, WrongCommand
from extensions.offline.conversation_images import MESSAGES, ConversationImages
from extensions.offline.media import is_bytes

PROMPT = "prompt"
IMAGE_MEMBERS = ("image", "images")
"""Names of the member with the images of a prompt: a value, or a list of values."""

_SENT_FIELD = re.compile(r"^messages\[0\]\.content(\[\d+\])\.image_url\.url(?=:)")


def check_columns(schema: pa.Schema, inputs: Mapping[str, str]) -> None:
    """Raise WrongCommand for columns that cannot hold the members of a conversation. `inputs`: member → column."""
    for member, name in inputs.items():
        field = schema.field(name)
        item = _item_type(field.type)
        if is_text(field) or (member == MESSAGES and item is not None):
            continue
        if member in IMAGE_MEMBERS and (holds_files(field) or (item is not None and is_text(pa.field("", item)))):
            continue
        expected = {MESSAGES: "lists of messages, or JSON of them", PROMPT: "texts"}.get(member, "paths or bytes")
        raise WrongCommand(
            f'--columns: expected {expected} for {member}, got "{name}" of {field.type}; name another column'
        )


def holds_files(field: pa.Field) -> bool:
    """Whether a column of images has the files themselves, as bytes."""
    return is_bytes(_item_type(field.type) or field.type)


def _item_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the items of a list; None for another type."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def explain_images(inputs: Mapping[str, str], reason: str) -> str:
    """Return a reason with the member of the input in place of the part of the request."""
    member = next((each for each in IMAGE_MEMBERS if each in inputs), None)
    return reason if member is None else _SENT_FIELD.sub(rf"{member}\1", reason)


class ConversationRows:
    """Conversations, one for each request, in the order of the input.

    `bad` grows while `requests` is read, as each file is opened for its request only.
    """

    def __init__(
        self,
        table: pa.Table,
        inputs: Mapping[str, str],
        folder: Path,
        description: RunModelDescription,
        options: Mapping[str, Any],
    ) -> None:
        """`inputs`: member → column. `folder`: of paths; files outside are not read."""
        self._table = table
        self._inputs = inputs
        self._folder = folder.resolve()
        self._max_images = description.max_images
        self._options = options
        self.bad: list[tuple[int, str]] = []

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        for position in range(self._table.num_rows):
            try:
                body = self.body([position])
            except UnreadableRow as error:
                self.bad.append((position, str(error)))
            else:
                yield RowRequest([position], body)

    def body(self, positions: list[int]) -> bytes:
        (position,) = positions
        row = {member: to_value(self._table, column, position) for member, column in self._inputs.items()}
        unreadable = next((member for member, value in row.items() if value is UNREADABLE), None)
        if unreadable is not None:
            raise UnreadableRow(f"{unreadable}: expected UTF-8, got other bytes")
        messages = _parse_messages(row[MESSAGES]) if MESSAGES in row else _to_messages(row)
        sent = ConversationImages(self._folder, self._max_images).sent(messages)
        try:
            return orjson.dumps({MESSAGES: sent, **self._options})
        except TypeError as error:
            raise UnreadableRow(f"{MESSAGES}: expected values of JSON, got others: {error}; correct them") from None


def _parse_messages(value: Any) -> list[Any]:
    """Return the messages of a list or of JSON text. The model checks their fields. Raises UnreadableRow."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            reason = f"expected a list of messages as JSON, got other text ({error.msg}); say --column for prompts"
            raise UnreadableRow(f"{MESSAGES}: {reason}") from None
    if not isinstance(value, list):
        raise UnreadableRow(f"{MESSAGES}: expected a list of messages, got {describe_type(value)}; correct the row")
    return [_without_nulls(each) if isinstance(each, dict) else each for each in value]


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the members that it has: in Parquet, all messages and parts of a column have the same.

    The role `developer` becomes `system`, as in /v1/chat/completions.
    """
    found = _present(message)
    if isinstance(found.get("content"), list):
        found["content"] = [_present_in_part(part) if isinstance(part, dict) else part for part in found["content"]]
    if found.get("role") == "developer":
        found["role"] = "system"
    return found


def _present_in_part(part: dict[str, Any]) -> dict[str, Any]:
    return {name: _present(value) if isinstance(value, dict) else value for name, value in _present(part).items()}


def _present(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _to_messages(row: Mapping[str, Any]) -> list[Any]:
    """Return the message of a prompt and its images, which go before the text. Raises UnreadableRow."""
    prompt = row[PROMPT]
    if not isinstance(prompt, str):
        raise UnreadableRow(f"{PROMPT}: expected a text, got {describe_type(prompt)}")
    given = next(row[member] for member in IMAGE_MEMBERS if member in row)
    if isinstance(given, str) and given.startswith("["):
        given = _parse_paths(given)
    images = [] if given is None else given if isinstance(given, list) else [given]
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]


def _parse_paths(text: str) -> Any:
    """Return the list of JSON text; the text itself where it is the name of a file."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
