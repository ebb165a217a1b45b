"""The codec that all routes of the OpenAI API share: bodies, models and errors."""

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.shared import ErrorObject

from app.inference.unnamed_model import UnnamedModel
from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.codec import OpenAiCodec, error_body
from app.protocols.openai.completions import COMPLETIONS_CODEC
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import ErrorReply, InvalidJson, to_http
from frameworks.core.errors import InvalidInput, ModelLoading, ModelNotFound, RequestError, UnknownField
from frameworks.types import ModelSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.openai.decoding import SPECS, assert_refused, check_is, decode, decode_error, find_spec


class TestBody:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b'{"model": "llama", "prompt": NaN}',
            b'{"model": "llama", "temperature": 1e999}',
            b'{"model": "llama", "prompt": "\\ud800"}',
            b'{"model":' * 2000 + b"1" + b"}" * 2000,
            b"[" * 2000 + b"]" * 2000,
        ],
    )
    def test_invalid_json_is_refused(self, body: bytes) -> None:
        assert isinstance(decode_error(COMPLETIONS_CODEC, body), InvalidJson)

    @pytest.mark.parametrize("body", [b"[]", b'"llama"', b"1", b"null"])
    def test_body_other_than_object_is_refused(self, body: bytes) -> None:
        error = decode_error(COMPLETIONS_CODEC, body)
        assert isinstance(error, InvalidInput)
        assert error.field == "body"

    def test_field_given_twice_is_refused(self) -> None:
        error = decode_error(COMPLETIONS_CODEC, b'{"model": "llama", "prompt": "a", "prompt": "b"}')
        assert isinstance(error, InvalidInput)
        assert error.field == "prompt"

    def test_deeply_nested_schema_is_refused(self) -> None:
        deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
        body = b'{"model": "llama", "prompt": "a", "json_schema": ' + deep + b"}"
        error = decode_error(COMPLETIONS_CODEC, body)
        assert isinstance(error, InvalidInput)
        assert error.field == "json_schema"

    @given(
        st.dictionaries(
            st.sampled_from(sorted(COMPLETIONS_CODEC.fields)) | st.text(max_size=8),
            st.recursive(
                st.none() | st.booleans() | st.integers(-9, 99) | st.floats(-3, 3) | st.text(max_size=4),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                max_leaves=5,
            ),
            max_size=6,
        )
    )
    def test_any_object_is_read_or_refused(self, fields: dict[str, object]) -> None:
        try:
            decode(COMPLETIONS_CODEC, **{"model": "llama", "prompt": "a", **fields})
        except RequestError as error:
            assert isinstance(error, ModelNotFound | InvalidInput | UnknownField)  # noqa: PT017 - any other is a bug


class TestModel:
    @pytest.mark.parametrize(("model", "word"), [("", 'got ""'), (1, "got 1"), ([], "got an array")])
    def test_invalid_model_name_is_refused(self, model: object, word: str) -> None:
        assert_refused(COMPLETIONS_CODEC, "model", word, "/v1/models", model=model, prompt="a")

    @pytest.mark.parametrize(
        "given", [None, "default/not-specified", "dummy", "tgi", "http://127.0.0.1:8080", "http://" + "a" * 9999]
    )
    def test_request_without_model_means_the_only_one(self, given: str | None) -> None:
        asked: list[str | UnnamedModel] = []

        def found(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
            asked.append(name)
            return find_spec(name, version)

        for fields in [{"model": given}] + [{}] * (given is None):
            body = orjson.dumps({**fields, "input": "a"})
            assert decode_body(EMBEDDINGS_CODEC, body, Target(), found).spec is SPECS["embed"]
            assert asked.pop() == UnnamedModel(("embed",), placeholder=given)

    def test_unknown_model_is_refused(self) -> None:
        assert isinstance(decode_error(COMPLETIONS_CODEC, model="lama", prompt="a"), ModelNotFound)

    @pytest.mark.parametrize(
        ("codec", "model"),
        [(COMPLETIONS_CODEC, "embed"), (COMPLETIONS_CODEC, "tensors"), (EMBEDDINGS_CODEC, "llama")],
    )
    def test_model_of_another_task_is_refused(self, codec: OpenAiCodec, model: str) -> None:
        assert_refused(codec, "model", f"got one whose task is {SPECS[model].task}", codec.path, model=model)

    def test_model_is_checked_before_other_fields(self) -> None:
        assert isinstance(decode_error(COMPLETIONS_CODEC, model="lama", prompt=7), ModelNotFound)

    def test_timeout_is_readable_before_model_is_loaded(self) -> None:
        def absent(
            name: str | UnnamedModel, version: str | None, read_timeout_ms: Callable[[], float | None]
        ) -> ModelSpec:
            assert read_timeout_ms() == 7
            raise ModelLoading("not loaded")

        with pytest.raises(ModelLoading):
            decode_body(COMPLETIONS_CODEC, b'{"model": "llama", "timeout_ms": 7}', Target(), absent)

    def test_model_is_searched_by_name_of_body(self) -> None:
        asked: list[tuple[str | UnnamedModel, str | None]] = []

        def found(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
            asked.append((name, version))
            return find_spec(name, version)

        decode_body(COMPLETIONS_CODEC, b'{"model": "llama", "prompt": "a"}', Target(), found)
        assert asked == [("llama", None)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", -1),
        ("priority", False),
        ("priority", 10),
        ("priority", "1"),
        ("timeout_ms", 0),
        ("timeout_ms", 0.5),
    ],
)
def test_invalid_priority_or_deadline_is_refused(field: str, value: object) -> None:
    assert_refused(COMPLETIONS_CODEC, field, "expected an integer from ", model="llama", prompt="a", **{field: value})


def test_priority_zero_is_the_default() -> None:
    assert decode(COMPLETIONS_CODEC, model="llama", prompt="a", priority=0).priority == 5


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (400, "invalid_json", "invalid_request_error"),
            (403, "forbidden", "permission_error"),
            (404, "model_not_found", "not_found_error"),
            (405, "method_not_allowed", "invalid_request_error"),
            (413, "too_large", "invalid_request_error"),
            (429, "quota_exceeded", "rate_limit_error"),
            (500, "internal", "server_error"),
            (503, "overloaded", "server_error"),
            (507, "out_of_memory", "server_error"),
        ],
    )
    def test_error_type_follows_status(self, status: int, code: str, kind: str) -> None:
        body = orjson.loads(COMPLETIONS_CODEC.error_body(ErrorReply(status, code, "why: because"), "abc-1"))
        assert body == {"error": {"message": "why: because", "type": kind, "param": None, "code": code}}
        check_is(ErrorObject, body["error"])

    @pytest.mark.parametrize(
        ("make", "param"),
        [
            (lambda: InvalidInput("messages[1].role", "is 3"), "messages[1].role"),
            (lambda: UnknownField.among("temprature", ["temperature"]), "temprature"),
            (lambda: UnknownField.among("not a name", ["temperature"]), None),
        ],
    )
    def test_error_param_is_the_field(self, make: Callable[[], InvalidInput | UnknownField], param: str | None) -> None:
        assert orjson.loads(error_body(to_http(make())))["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        (b"a" * 8191 + b",", False),
        (b"," * 1024, False),
        (b"," * 1023 + b"a" * 9000, False),
        (b"," * 1024 + b"a" * 9000, True),
        pytest.param(b"a" * 256 * 1024, True, id="one word"),
    ],
)
def test_dense_bodies_are_long_to_read(body: bytes, is_long: bool) -> None:
    assert CHAT_CODEC.is_long_to_read(body) is is_long
