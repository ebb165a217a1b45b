"""Bodies of /infer that are one file or a form: read whole within bounds, or refused with the name of the part."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.protocols.native.codec import NativeRequest
from app.protocols.native.files import CODEC
from app.protocols.native.multipart import RULES
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import InvalidJson, UnsupportedMediaType
from app.protocols.shared.fields.images import MAX_IMAGES
from app.protocols.shared.forms import MAX_HEADER_BYTES, MAX_HEADERS, MAX_TEXT_BYTES, read_boundary, read_form
from frameworks.core.errors import InvalidInput, RoundhouseError, UnknownField
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskParameter, TaskRequest, TaskSpec
from frameworks.types import ModelSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import find_spec

FILE = b"\xff\xd8 a file \r\n--x"
Part = tuple[str, bytes]


def form(*parts: Part, boundary: str = "b-1", end: bytes = b"--b-1--\r\n", headers: str = "") -> bytes:
    """Return the body of a form."""
    lines = b""
    for name, content in parts:
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"; filename="a.jpg"\r\n{headers}\r\n'
        lines += head.encode() + content + b"\r\n"
    return lines + end


def decode_form(body: bytes, model: str | None = "photos", query: bytes = b"") -> NativeRequest:
    codec = CODEC.for_head([(b"content-type", b"multipart/form-data; boundary=b-1")], query)
    decoded: NativeRequest = decode_body(codec, body, Target(model), find_spec)
    return decoded


def decode_file(body: bytes, query: bytes, model: str | None = "photos") -> NativeRequest:
    codec = CODEC.for_head([(b"content-type", b"image/png")], query)
    decoded: NativeRequest = decode_body(codec, body, Target(model), find_spec)
    return decoded


def test_file_is_read_with_options_of_query() -> None:
    decoded = decode_file(FILE, b"top_k=2&priority=3&timeout_ms=500")
    assert decoded.request == ImageRequest([FILE], top_k=2)
    assert (decoded.field, decoded.priority, decoded.timeout_ms) == ("image", 3, 500)
    assert decode_file(FILE, b"").request == ImageRequest([FILE])
    assert decode_file(FILE, b"model_name=photo-vectors&normalize=false", None).request == ImageRequest(
        [FILE], normalize=False
    )
    assert decode_file(FILE, b"outputs=z,y", "photo-tensors").request == ImageRequest([FILE], output_names=("z", "y"))


def test_form_is_read_with_files_in_order() -> None:
    body = form(("image", FILE), ("top_k", b"1"), ("image", b"other"), ("model_name", b"photos"))
    assert decode_form(body, None).request == ImageRequest([FILE, b"other"], top_k=1)
    outputs = form(("image", FILE), ("outputs", b"y"), ("outputs", b"z"))
    assert decode_form(outputs, "photo-tensors").request == ImageRequest([FILE], output_names=("y", "z"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"topk=1", 'query.topk: unknown field; did you mean "query.top_k"?'),
        (b"image=x", "query.image: unknown field"),
        (b"top_k=0", "top_k: expected an integer of 1 or more, got 0"),
        (b"top_k=x", 'top_k: expected an integer of 1 or more, got "x"'),
        (b"top_k=1&top_k=2", "top_k: expected one value, got several"),
        (b"priority=10", "priority: expected an integer from 1 (first) to 9, got 10"),
        (b"normalize=true", "normalize: expected a model of task embed, got classify"),
        (b"outputs=y", "outputs: expected a model of task tensor, got classify"),
        (b"model_name=other", 'model_name: expected "photos" as in the path, got "other"'),
        (b"a=%ff", "query: expected options like top_k=3 in UTF-8"),
        (b"&".join([b"top_k=1"] * 65), "query: expected options like top_k=3"),
    ],
)
def test_query_with_wrong_option_is_refused(query: bytes, message: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        decode_file(FILE, query)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (form(("imag", FILE)), 'imag: unknown field; did you mean "image"?'),
        (form(("texts", FILE)), "texts: unknown field"),
        (form(("top_k", b"1")), "image: expected 1 to 256 images, got 0"),
        (form(("image", b"")), "image: expected a file, got an empty one"),
        (form(("image", FILE), ("image", b"")), "image[1]: expected a file, got an empty one"),
        (form(*[("image", b"x")] * (MAX_IMAGES + 1)), "image: expected at most 256 images, got more"),
        (form(("image", FILE), *[("top_k", b"1")] * 65), "body: expected at most 64 parts besides files"),
        (form(("top_k", b"1" * (MAX_TEXT_BYTES + 1))), "top_k: expected at most 4096 bytes"),
        (form(("version", b"\xff")), "version: expected text in UTF-8"),
        (form(("image", FILE), end=b""), "body: expected the boundary that ends the form"),
        (form(("image", FILE), headers="content-transfer-encoding: base64\r\n"), "content-transfer-encoding: expected"),
        (
            form(("image", FILE), headers=f"x: {'y' * MAX_HEADER_BYTES}\r\n"),
            "body: expected parts of multipart/form-data",
        ),
        (form(("image", FILE), headers="x: y\r\n" * MAX_HEADERS), "body: expected parts of multipart/form-data"),
        (b"--b-1\r\nx: y\r\n\r\nz\r\n--b-1--", "content-disposition: expected form-data with a name"),
        (b"no form", "body: expected parts of multipart/form-data"),
        (b"{}", "body: expected parts of multipart/form-data"),
    ],
)
def test_form_with_wrong_part_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        decode_form(body)
    assert caught.value.message.startswith(message)


def test_form_with_query_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^query: expected no query beside a form"):
        decode_form(form(("image", FILE)), query=b"top_k=1")


@pytest.mark.parametrize("model", ["matrix", "embed", "generate"])
def test_image_for_other_model_is_refused(model: str) -> None:
    with pytest.raises(InvalidInput, match=r"^image: expected a model that reads images, got another; "):
        decode_file(FILE, b"", model)


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        (b"image/heic", "content-type: expected image/jpeg, image/png, image/webp, image/gif"),
        (b"audio/midi", "content-type: expected audio/wav, "),
        (b"video/x-flv", "content-type: expected video/mp4, "),
        (b"image/svg+xml", "content-type: expected image/jpeg"),
        (b"text/plain", "content-type: expected application/json"),
        (b"application/x-www-form-urlencoded", "content-type: expected application/json"),
        (b"multipart/mixed; boundary=x", "content-type: expected application/json"),
    ],
)
def test_other_media_type_is_unsupported(content_type: bytes, message: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        CODEC.for_head([(b"content-type", content_type)], b"")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("head", [[], [(b"content-type", b"application/octet-stream")]])
@pytest.mark.parametrize("query", [b"", b"top_k=2"])
def test_untyped_body_is_told_by_first_bytes(head: list[tuple[bytes, bytes]], query: bytes) -> None:
    codec = CODEC.for_head(head, query)
    image = b"\xff\xd8\xff an image"
    expected = ImageRequest([image], top_k=2) if query else ImageRequest([image])
    assert decode_body(codec, image, Target("photos"), find_spec).request == expected
    body = b' {"image": "/9j/IGFu"}'
    assert decode_body(codec, body, Target("photos"), find_spec).request == ImageRequest([b"\xff\xd8\xff an"])
    with pytest.raises(InvalidInput, match=r"^audio: expected a model that reads audio, got another; "):
        decode_body(CODEC.for_head(head, b""), b"RIFF\0\0\0\0WAVE", Target("photos"), find_spec)


@pytest.mark.parametrize("body", [b"", b"hello", b"%PDF-1.7", b"<svg/>"])
def test_other_binary_body_is_unsupported(body: bytes) -> None:
    codec = CODEC.for_head([(b"content-type", b"application/octet-stream")], b"")
    with pytest.raises(UnsupportedMediaType, match=r"^content-type: expected an image, audio, video or"):
        decode_body(codec, body, Target("photos"), find_spec)
    with pytest.raises(InvalidJson):
        decode_body(CODEC.for_head([], b""), body, Target("photos"), find_spec)


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_media_reach_model_of_task(kind: Literal["audio", "video"]) -> None:
    parameters = (TaskParameter("top_k", "integer"),)
    spec = replace(find_spec("photos", None), pipeline=TaskSpec(f"{kind}-classification", (kind,), parameters))

    def find(*_: object) -> ModelSpec:
        return spec

    content_type = {"audio": b"audio/flac", "video": b"video/mp4; codecs=avc1"}[kind]
    raw = CODEC.for_head([(b"content-type", content_type)], b"top_k=2")
    expected = TaskRequest([{kind: FILE}], {"top_k": 2})
    assert decode_body(raw, FILE, Target("clips"), find).request == expected
    parts = CODEC.for_head([(b"content-type", b"multipart/form-data; boundary=b-1")], b"")
    body = form((kind, FILE), (kind, b"other"))
    assert decode_body(parts, body, Target("clips"), find).request == TaskRequest([{kind: FILE}, {kind: b"other"}], {})
    for refused, message in (
        (form((kind, FILE), ("image", FILE)), f"image: expected files of one field, got {kind} too"),
        (form(("image", FILE)), f"image: expected {kind} for a model of task {kind}-classification"),
        (form(*[(kind, FILE)] * 33), f"{kind}: expected at most 32 files of {kind}, got more"),
        (form((kind, FILE), (kind, b"")), f"{kind}[1]: expected a file, got an empty one"),
        (form((kind, FILE), ("normalize", b"true")), "parameters.normalize: unknown field"),
    ):
        with pytest.raises(RoundhouseError) as caught:
            decode_body(parts, refused, Target("clips"), find)
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize("value", [b"", b"; boundary=", b'; boundary=""', b"; boundary=" + b"x" * 300])
def test_form_without_boundary_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^content-type: expected a boundary of 1 to 256 bytes"):
        read_boundary(b"multipart/form-data" + value)


def test_json_body_keeps_codec_of_path() -> None:
    for headers in ([(b"content-type", b"application/json")], [(b"content-type", b"application/x+json")]):
        assert CODEC.for_head(headers, b"") is CODEC


WHOLE = form(("image", FILE), ("top_k", b"2"), ("image", b"\x00" * 20))
edits = st.lists(
    st.tuples(
        st.integers(0, len(WHOLE)),
        st.integers(0, 6),
        st.sampled_from([b"", b"\r\n", b"--b-1", b"--", b":", b";", b'"', b"\x00", b"\xff", b"name=", b"\r", b"\n"]),
    ),
    max_size=4,
)


@given(edits)
@settings(max_examples=150)
@example([(len(WHOLE) - 2, 2, b"")])
def test_damaged_form_is_read_or_refused(changes: list[tuple[int, int, bytes]]) -> None:
    body = WHOLE
    for at, cut, piece in changes:
        body = body[:at] + piece + body[at + cut :]
    try:
        parts = read_form(body, b"b-1", RULES)
    except (InvalidInput, UnknownField) as refusal:
        message = refusal.message
    else:
        assert len(parts.files) + len(parts.options) <= body.count(b"--b-1")
        return
    assert len(message.encode()) < 2000


files = st.binary(max_size=40).filter(lambda file: b"--b-1" not in file)
texts = st.text(max_size=20).map(str.encode)


@given(st.lists(st.tuples(st.just("image"), files) | st.tuples(st.just("top_k"), texts), max_size=5))
def test_form_parts_are_returned_unchanged(parts: list[Part]) -> None:
    read = read_form(form(*parts), b"b-1", RULES)
    assert read.files == [content for name, content in parts if name == "image"]
    assert read.options == [(name, content.decode()) for name, content in parts if name == "top_k"]
