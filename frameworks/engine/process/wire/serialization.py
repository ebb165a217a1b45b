"""Serialize requests, answers, specs, tenants and errors between processes, as plain values of msgpack.

A value of a registered class is a list: the name of the class, then its content. Nothing else can be built from a
message, and building checks every field against the annotations of the class. Arrays stay arrays: the encoder and the
decoder of messages write and read them (frameworks.core.channel.arrays).
"""

from typing import Any, TypeVar

import msgspec
import numpy as np

from frameworks.core import errors
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import FieldError, ModelFailed, Overloaded, RoundhouseError
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.generation.types import GenerateRequest
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskAnswer, TaskRequest
from frameworks.text.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    SpansAnswer,
    SpansRequest,
    TokenAnswer,
    TokenizeAnswer,
    TokenizeRequest,
    TokenRequest,
)
from frameworks.types import (
    Answer,
    ClassifyAnswer,
    CombinedAnswer,
    ConversationRequest,
    EmbedAnswer,
    ImagePairRequest,
    ModelSpec,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    SequenceStep,
    SparseAnswer,
    TensorBatch,
    TextRequest,
    TokenBatch,
    Value,
)

SentRequest = (
    TensorBatch
    | TokenBatch
    | TextRequest
    | ImageRequest
    | ConversationRequest
    | PairRequest
    | ImagePairRequest
    | TaskRequest
    | TokenRequest
    | GenerateRequest
)
SentAnswer = Answer | TokenAnswer
Plain = tuple[Any, ...]
"""A name and a content, which msgpack can encode with the hook of ArrayWriter."""
PlainTenant = tuple[str, float, bool]

_OUTPUTS = "outputs"
_TENSORS = "TensorBatch"
_REQUESTS: dict[str, type[SentRequest]] = {
    each.__name__: each
    for each in (
        TokenBatch,
        TextRequest,
        ImageRequest,
        ConversationRequest,
        PairRequest,
        ImagePairRequest,
        TaskRequest,
        TokenizeRequest,
        DetokenizeRequest,
        SpansRequest,
        GenerateRequest,
    )
}
_ANSWERS: dict[str, type[SentAnswer]] = {
    each.__name__: each
    for each in (
        EmbedAnswer,
        ClassifyAnswer,
        ScoreAnswer,
        SparseAnswer,
        MultiVectorAnswer,
        CombinedAnswer,
        TaskAnswer,
        TokenizeAnswer,
        DetokenizeAnswer,
        SpansAnswer,
    )
}
_ERRORS: dict[str, type[RoundhouseError]] = {
    name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, RoundhouseError)
}
_NAME_TYPES = frozenset({str})
_LEAVES = (str, int, float, bool)
_T = TypeVar("_T")


def request_to_plain(request: SentRequest) -> Plain:
    """Return the plain value of a request. It shares the arrays and lists of the request."""
    if type(request) is TensorBatch:
        return (_TENSORS, request.inputs, request.output_names, request.sequence)
    return _named(request, _REQUESTS)


def request_from_plain(plain: object) -> SentRequest:
    """Return the request. Raises ProtocolError for a damaged one."""
    match plain:
        case ["TensorBatch", dict() as inputs, None | list() as names, step]:
            if names is not None and not _NAME_TYPES.issuperset(map(type, names)):
                raise ProtocolError("request: expected names of outputs, got other values")
            return TensorBatch(_checked_values(inputs), None if names is None else tuple(names), _step_from_plain(step))
    return _built(plain, _REQUESTS, "request")


def _step_from_plain(plain: object) -> SequenceStep | None:
    match plain:
        case None:
            return None
        case [int() | str() as number, bool() as start, bool() as end] if not isinstance(number, bool):
            return SequenceStep(number, start, end)
    raise ProtocolError("request: expected the step of a sequence, got other values")


def answer_to_plain(answer: SentAnswer) -> Plain:
    """Return the plain value of an answer. It shares the arrays and lists of the answer."""
    if type(answer) is dict:
        return (_OUTPUTS, answer)
    return _named(answer, _ANSWERS)


def answer_from_plain(plain: object) -> SentAnswer:
    """Return the answer. Raises ProtocolError for a damaged one."""
    match plain:
        case ["outputs", dict() as outputs]:
            return _checked_values(outputs)
    return _built(plain, _ANSWERS, "answer")


def spec_from_plain(plain: object) -> ModelSpec:
    """Return the spec of a model, which was sent as it is. Raises ProtocolError for a damaged one."""
    try:
        return msgspec.convert(plain, ModelSpec)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"spec: expected the fields of a model's spec, got others ({error})") from None


def tenant_to_plain(tenant: Tenant) -> PlainTenant:
    """Return the name, the weight, and whether the tenant shares its caches."""
    return (tenant.name, tenant.weight, tenant.shares_caches)


def tenant_from_plain(plain: PlainTenant) -> Tenant:
    """Return a tenant, equal to the one that was sent. That of callers without tenants is DEFAULT_TENANT."""
    tenant = Tenant(*plain)
    return DEFAULT_TENANT if tenant == DEFAULT_TENANT else tenant


def error_to_plain(error: BaseException) -> ErrorState:
    """Return the state of an error: of an unknown class, that of the nearest known base class."""
    if not isinstance(error, RoundhouseError):
        return ErrorState("RuntimeError", _sendable(f"{type(error).__name__}: {error}"))
    name = next(each.__name__ for each in type(error).__mro__ if _ERRORS.get(each.__name__) is each)
    state = vars(error)
    texts = {key: _sendable(str(state[key])) for key in ("field", "reason") if key in state}
    public = None if error.public == error.message else _sendable(error.public)
    return ErrorState(name, _sendable(error.message), **texts, retry_after_s=state.get("retry_after_s"), public=public)


def error_from_plain(state: ErrorState) -> Exception:
    """Return the error. A class of no such name, or without the attributes of its class, becomes ModelFailed."""
    if state.name == "RuntimeError":
        return RuntimeError(state.message)
    kind = _ERRORS.get(state.name, ModelFailed)
    # Some classes make their message of other arguments, which are not known here.
    error = kind.__new__(kind)
    RoundhouseError.__init__(error, state.message, state.public)
    if isinstance(error, FieldError) and state.field is not None and state.reason is not None:
        error.field, error.reason = state.field, state.reason
    elif isinstance(error, Overloaded) and state.retry_after_s is not None:
        error.retry_after_s = state.retry_after_s
    elif isinstance(error, ModelFailed):
        if state.retry_after_s is not None:
            error.retry_after_s = state.retry_after_s
    elif isinstance(error, FieldError | Overloaded):
        return ModelFailed(state.message, state.retry_after_s, state.public)
    return error


def _named(value: object, known: dict[str, type[Any]]) -> Plain:
    name = type(value).__name__
    if known.get(name) is not type(value):
        raise TypeError(f"expected one of {', '.join(known)}, got {name}")
    return (name, value)


def _built(plain: object, known: dict[str, type[_T]], what: str) -> _T:
    match plain:
        case [str() as name, content] if name in known:
            try:
                return msgspec.convert(content, known[name], dec_hook=_checked_array)
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"{what}: expected the fields of {name}, got others ({error})") from None
    raise ProtocolError(f"{what}: expected one of {', '.join(known)}, got another value")


def _checked_array(expected: type, value: object) -> object:
    """Check an array in a field of a class: the `dec_hook` of msgspec."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"Expected an array, got {type(value).__name__}")


def _checked_values(values: dict[Any, Any]) -> dict[str, Value]:
    for name, value in values.items():
        if type(name) is not str:
            raise ProtocolError(f"tensors: expected names, got {type(name).__name__}")
        if type(value) is not np.ndarray:
            _check(value)
    return values


def _check(value: object) -> None:
    """Check a value that is part of a sequence, a map or an optional."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict) and all(type(key) in (str, int) for key in each):
            pending += each.values()
        elif each is not None and not isinstance(each, (*_LEAVES, np.ndarray)):
            raise ProtocolError(f"tensors: expected a tensor, list or map, got {type(each).__name__}")


def _sendable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
