"""Files with texts for models of tasks: in JSON, as a whole body, and in a form; wrong ones are refused by name."""

import json
from base64 import b64encode
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from app.protocols.native.files import CODEC
from app.protocols.shared.codec import Codec, Target
from frameworks.core.errors import FieldError
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS

JPEG, SOUND = b"\xff\xd8\xff an", b"RIFF\0\0\0\0WAVE"
DOCUMENT = {"question": "what ?", "word_boxes": [["a", [0, 0, 10, 10]]]}
LABELS = {"candidate_labels": ["a", "b"]}
FORM = CODEC.for_head([(b"content-type", b"multipart/form-data; boundary=b-1")], b"")


def read(task: str, codec: Codec, body: bytes) -> TaskRequest:
    spec = replace(SPECS["none"], pipeline=TASKS[task])
    request = decode_body(codec, body, Target("m"), lambda *_: spec).request
    assert isinstance(request, TaskRequest)
    return request


def whole(kind: str, **options: Any) -> Codec:
    """Return the codec of a body that is one file."""
    query = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in options.items())
    return CODEC.for_head([(b"content-type", kind.encode())], query.encode())


def form(file: tuple[str, bytes], **options: Any) -> bytes:
    parts = [(file[0], b'; filename="a"', file[1])]
    parts += [(name, b"", json.dumps(value).encode()) for name, value in options.items()]
    head = b'--b-1\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    return b"".join(head % (name.encode(), more, value) for name, more, value in parts) + b"--b-1--\r\n"


@pytest.mark.parametrize(
    ("task", "field", "kind", "file", "options"),
    [
        ("document-question-answering", "image", "image/jpeg", JPEG, {"text": DOCUMENT}),
        ("zero-shot-audio-classification", "audio", "audio/wav", SOUND, {"parameters": LABELS}),
        ("zero-shot-image-classification", "image", "image/jpeg", JPEG, {"parameters": LABELS}),
        ("mask-generation", "image", "image/jpeg", JPEG, {"parameters": {"input_points": [[[1, 2]]]}}),
    ],
)
def test_file_with_texts_in_every_form(task: str, field: str, kind: str, file: bytes, options: dict[str, Any]) -> None:
    expected = TaskRequest([{field: file, **options.get("text", {})}], options.get("parameters", {}))
    body = json.dumps({field: b64encode(file).decode(), **options}).encode()
    assert read(task, CODEC, body) == expected
    assert read(task, whole(kind, **options), file) == expected
    assert read(task, FORM, form((field, file), **options)) == expected


@pytest.mark.parametrize("text", ["q", [1], 3, None, {"question": "q"}])
def test_wrong_text_beside_file_is_refused(text: Any) -> None:
    with pytest.raises(FieldError, match=r"^(text|image\.word_boxes): expected"):
        read("document-question-answering", FORM, form(("image", JPEG), text=text))


@pytest.mark.parametrize("value", ["abc", 3, None, [], [1, 2], {"a": 1}, [[1.0]]])
@pytest.mark.parametrize(("task", "field"), [("object-detection", "image"), ("audio-classification", "audio")])
def test_file_among_texts_is_refused(task: str, field: str, value: Any) -> None:
    with pytest.raises(FieldError, match=rf"^text: expected a file, got .*; send it as {field}"):
        read(task, CODEC, json.dumps({"text": {field: value}}).encode())
