"""Read image, audio and video files out of texts: base64 or data URLs. No URL is ever fetched."""

import binascii
import re

from frameworks.core.errors import InvalidInput

_DATA_URL = re.compile(r"data:([^;,]{0,100})((?:;[^;,]{0,100}){0,8}),", re.ASCII | re.IGNORECASE)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}:", re.ASCII | re.IGNORECASE)
_URL_CHARACTERS = str.maketrans("-_", "+/")
_MAX_SHOWN = 40
_EXAMPLES = {
    "image": "data:image/jpeg;base64,…",
    "audio": "data:audio/wav;base64,…",
    "video": "data:video/mp4;base64,…",
}


def read_encoded(text: str, field: str, kind: str = "image") -> bytes:
    """Return the file of a data URL or of plain base64, also in the alphabet for URLs. Raises InvalidInput."""
    start = 0
    # base64 has no colon, and a scheme is short: a long text is not searched.
    if ":" in text[:_MAX_SHOWN]:
        start = _end_of_data_url(text, field, _EXAMPLES[kind])
    try:
        content = binascii.a2b_base64(_payload(text[start:] if start else text), strict_mode=True)
    except ValueError as error:
        raise InvalidInput(field, f"expected base64, got other text ({error}); encode the bytes of the file") from None
    if not content:
        raise InvalidInput(field, f"expected the {kind} of a file, got an empty text; encode its bytes")
    return content


def _end_of_data_url(text: str, field: str, example: str) -> int:
    """Return the index behind the head of a data URL. Raises InvalidInput for every other URL."""
    head = _DATA_URL.match(text)
    if head is not None:
        if head[2].lower().endswith(";base64"):
            return head.end()
        raise InvalidInput(field, f"expected a data URL in base64, got another one; send {example}")
    if _OTHER_URL.match(text):
        scheme = text.partition(":")[0].lower()
        raise InvalidInput(
            field,
            f"expected base64 or a data URL, got a URL with the scheme {scheme[:_MAX_SHOWN]}; the server fetches no "
            f"URL: send the file itself, as {example}",
        )
    raise InvalidInput(field, "expected base64 or a data URL, got other text; encode the bytes of the file")


def _payload(text: str) -> str | bytes:
    """Return base64 in the usual alphabet, without line ends and with its padding."""
    if "\n" in text or "\r" in text:
        text = text.replace("\r", "").replace("\n", "")
    if "-" in text or "_" in text:
        text = text.translate(_URL_CHARACTERS)
    return text + "=" * (-len(text) % 4) if len(text) % 4 > 1 else text
