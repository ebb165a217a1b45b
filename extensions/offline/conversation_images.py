"""Images and videos in the messages of a conversation: their paths and bytes become the URLs of a request."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.protocols.shared.json.body import describe_type
from extensions.offline.contract import UnreadableRow
from extensions.offline.media import MAX_FILE_BYTES, encode_file, read_file

MESSAGES = "messages"

_PART_MEMBERS = ("path", "url")
"""Names by which transformers' chat templates have the file of a part, beside `image` or `video`."""
_URL = re.compile(r"(data(?=:)|[a-z][a-z0-9+.-]*(?=://))", re.ASCII | re.IGNORECASE)
_SENT_URLS = ("data", "http", "https")


class ConversationImages:
    """The images of one conversation: their number, and the bytes of their files."""

    def __init__(self, folder: Path, max_images: int) -> None:
        self._folder = folder
        self._max_images = max_images
        self._num_bytes = 0

    def sent(self, messages: list[Any]) -> list[Any]:
        """Return messages whose images are data URLs, base64 or URLs of http(s). Raises UnreadableRow."""
        found = [[*_images_of(message, index)] for index, message in enumerate(messages)]
        self._check_number([field for each in found for _, field, _ in each])
        return [self._with_urls(*each) for each in zip(messages, found, strict=True)]

    def _with_urls(self, message: Any, images: list[tuple[int, str, Any]]) -> Any:
        if not images:
            return message
        content = [*message["content"]]
        for at, field, value in images:
            content[at] = _to_part(content[at], self._url_of(value, field))
        return {**message, "content": content}

    def _check_number(self, fields: list[str]) -> None:
        """Raise UnreadableRow before a file is read."""
        if fields and not self._max_images:
            reason = "expected only texts, as the model reads no images, got one; name a model that does"
            raise UnreadableRow(f"{fields[0]}: {reason}")
        if len(fields) > self._max_images:
            reason = f"expected at most {self._max_images} images, got {len(fields)}"
            raise UnreadableRow(f"{MESSAGES}: {reason}; send fewer, or raise max_images of the model")

    def _url_of(self, value: Any, field: str) -> str:
        """Return the URL that a request has. Raises UnreadableRow."""
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")  # an image of a data set of Hugging Face
        if isinstance(value, str):
            url = _URL.match(value)
            if url is not None and url[1].lower() in _SENT_URLS:
                return value
            if url is not None:
                reason = f"expected a path, a data URL or one of http(s), got {url[1][:20]}; write the path alone"
                raise UnreadableRow(f"{field}: {reason}")
            value = read_file(self._folder, value, field)
        if not isinstance(value, bytes):
            raise UnreadableRow(f"{field}: expected a path, a data URL or bytes, got {describe_type(value)}")
        encoded = encode_file(value, field)
        self._num_bytes += len(value)
        if self._num_bytes > MAX_FILE_BYTES:
            reason = f"expected files of at most {MAX_FILE_BYTES} bytes together, got more; send smaller ones"
            raise UnreadableRow(f"{MESSAGES}: {reason}")
        return encoded


def _images_of(message: Any, index: int) -> Iterator[tuple[int, str, Any]]:
    """Yield the position, field and value of each image of a message. Raises UnreadableRow."""
    content = message.get("content") if isinstance(message, dict) else None
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        field = f"{MESSAGES}[{index}].content[{at}]"
        if kind in ("image", "video"):
            members, known = [name for name in part if name != "type"], (kind, *_PART_MEMBERS)
            if len(members) != 1 or members[0] not in known:
                reason = f"expected one of {', '.join(known)} beside type, got {', '.join(members) or 'none'}"
                raise UnreadableRow(f"{field}: {reason}; keep one of them")
            yield at, f"{field}.{members[0]}", part[members[0]]
        elif kind in ("image_url", "video_url") and isinstance(part.get(kind), dict) and "url" in part[kind]:
            yield at, f"{field}.{kind}.url", part[kind]["url"]


def _to_part(part: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the part of a request. Further members are those of the row, which the model checks."""
    kind: str = part["type"]
    if kind in ("image", "video"):
        return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    return {**part, kind: {**part[kind], "url": url}}
